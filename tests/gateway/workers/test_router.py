"""Routes without costs: the least loaded pair that fits together, as where a worker has not measured its steps."""

from collections import Counter
from collections.abc import Collection, Iterable

from gateway.workers.router import Router
from gateway.workers.worker import Worker
from infra.redis.records import Role, WorkerRecord
from infra.redis.worker_load import WorkerLoad
from pricing.routes.route import Route, RouteRequest
from tests.gateway.workers.listed import listed


def worker(
    epoch: str, role: Role, load: WorkerLoad | None = None, fingerprint: str = "f", draining: bool = False
) -> Worker:
    found = Worker(
        WorkerRecord(
            epoch=epoch,
            role=role,
            address="",
            handoff_address="",
            model="m",
            fingerprint=f"{fingerprint} of {epoch}",
            content=fingerprint,
            block_tokens=16,
            max_model_len=100,
            device="cpu",
            dtype="fp32",
            started_at=0.0,
            draining=draining,
            load=load or WorkerLoad(blocks_total=100),
        )
    )
    found.usable = True
    return found


def pick(router: Router, workers: Iterable[Worker], tokens: int, avoid: Collection[str] = ()) -> Route | None:
    choice = router.pick(listed(workers), RouteRequest(tokens), 0.0, avoid)
    return choice.route if choice is not None else None


def test_equals_take_turns() -> None:
    router = Router()
    workers = [worker("p1", "prefill"), worker("p2", "prefill"), worker("d1", "decode"), worker("d2", "decode")]
    picked = [pick(router, workers, 10) for _ in range(8)]
    assert Counter(route.prefill for route in picked if route) == {"p1": 4, "p2": 4}
    assert Counter(route.decode for route in picked if route) == {"d1": 4, "d2": 4}


def test_own_assignments_count_at_once() -> None:
    router = Router()
    workers = [worker("p", "prefill"), worker("d1", "decode"), worker("d2", "decode"), worker("d3", "decode")]
    by_epoch = {one.record.epoch: one for one in workers}
    for _ in range(30):
        route = pick(router, workers, 10)
        assert route is not None
        by_epoch[route.decode].own_sequences += 1
    assert [one.own_sequences for one in workers[1:]] == [10, 10, 10]


def test_others_load_counts_as_reported() -> None:
    busy = WorkerLoad(running=5, waiting=3, blocks_total=100)
    workers = [worker("p", "prefill"), worker("d1", "decode", busy), worker("d2", "decode")]
    workers[2].own_sequences = 7
    assert pick(Router(), workers, 10) == Route("p", "d2")
    workers[2].own_sequences = 9
    assert pick(Router(), workers, 10) == Route("p", "d1")


def test_a_report_does_not_count_ours_twice() -> None:
    one = worker("d", "decode")
    one.own_sequences = 4
    one.renew(worker("d", "decode", WorkerLoad(running=6, blocks_total=100)).record, 0.0)
    assert one.load() == 6
    one.own_sequences = 1
    assert one.load() == 3


def test_a_full_pool_comes_last() -> None:
    full = WorkerLoad(blocks_total=100, blocks_used=99)
    workers = [worker("p", "prefill"), worker("d1", "decode", full), worker("d2", "decode")]
    workers[2].own_sequences = 50
    assert pick(Router(), workers, 160) == Route("p", "d2")
    assert pick(Router(), workers, 16) == Route("p", "d1")


def test_what_is_not_usable_is_skipped() -> None:
    workers = [worker("p", "prefill"), worker("d1", "decode", draining=True), worker("d2", "decode")]
    for _ in range(4):
        assert pick(Router(), workers, 10) == Route("p", "d2")
    workers[2].usable = False
    assert pick(Router(), workers, 10) == Route("", "p")
    workers[0].usable = False
    assert pick(Router(), workers, 10) is None


def test_without_a_decode_worker_a_prefill_worker_answers_the_whole_request() -> None:
    assert pick(Router(), [worker("p", "prefill")], 10) == Route("", "p")
    assert pick(Router(), [], 10) is None


def test_a_pooled_prompt_goes_to_one_worker_that_computes_prompts() -> None:
    workers = [worker("p", "prefill"), worker("d", "decode")]

    def route(among: list[Worker]) -> Route:
        choice = Router(hand_off_always=True).pick(listed(among), RouteRequest(10, pooled=True), 0.0)
        assert choice is not None
        return choice.route

    assert route(workers) == Route("", "p")
    assert route(workers[1:]) == Route("", "d")
