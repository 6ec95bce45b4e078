"""Costs to believe, as a table: who has learned lately is believed, who has not is taken for one of its kind."""

from collections import Counter

import pytest
from msgspec import structs

from contracts.ids import NO_TICKET
from gateway.workers.router import Router
from gateway.workers.worker import Worker
from infra.redis.records import Role, WorkerRecord
from infra.redis.worker_load import WorkerLoad
from pricing.routes.backlog import Backlog
from pricing.routes.pooled import COSTS_MEMORY_S, MAX_WORKERS_IN_MEDIANS, POOLS_KEPT_S, KeptPools, cost_pools
from pricing.routes.route import RouteRequest
from pricing.step_costs.steps import StepCosts
from tests.gateway.workers.listed import listed

NOW_S = 1000.0
MEMORY_S = COSTS_MEMORY_S
LEARNED = StepCosts(step=0.010, prompt_token=0.001, pair=1e-7, sequence=0.001, context_token=1e-6, steps=500)


def slower(times: float, steps: int = 500) -> StepCosts:
    mixed = {name: times * getattr(LEARNED, name) for name in ("step", "prompt_token", "pair", "sequence")}
    return structs.replace(LEARNED, **mixed, steps=steps)


def worker(epoch: str, costs: StepCosts, ago: float, role: Role = "decode", device: str = "cpu") -> Worker:
    record = WorkerRecord(
        epoch,
        role,
        "",
        "",
        "m",
        "f",
        "c",
        16,
        8192,
        device,
        "fp32",
        0.0,
        load=WorkerLoad(blocks_total=1000, costs=costs),
    )
    found = Worker(record)
    found.usable, found.learned_at = True, NOW_S - ago
    found.reports(Backlog(free_blocks=1000), NO_TICKET, NOW_S)
    return found


ROWS: dict[str, tuple[list[Worker], float, float]] = {  # the first one's step: from, to, of a usual one
    "who runs is believed": ([worker("a", slower(8), 0), worker("b", LEARNED, 0)], 8, 8),
    "… if not all do so at once": ([worker("a", slower(8), 3), worker("b", LEARNED, 0)], 8, 8),
    "who has learned nothing for long is taken for the others": (
        [worker("a", slower(8), 10 * MEMORY_S), worker("b", LEARNED, 0)], 1, 1.01,
    ),
    "… gradually": ([worker("a", slower(8), 1.5 * MEMORY_S), worker("b", LEARNED, 0)], 3, 5),
    "who was too hopeful as well": ([worker("a", slower(0.1), 10 * MEMORY_S), worker("b", LEARNED, 0)], 0.99, 1),
    "a seed is a guess": ([worker("a", slower(8, steps=0), 0), worker("b", LEARNED, 0)], 1, 1),
    "… and all that there is at a start": (
        [worker("a", slower(8, steps=0), 0), worker("b", slower(4, steps=0), 0)], 8, 8,
    ),
    "… but for one that has run a step or two, be it a while ago": (
        [worker("a", slower(40, steps=0), 0), worker("b", structs.replace(LEARNED, steps=2), 3 * MEMORY_S)], 1, 1,
    ),
    "where nobody runs, all are as they were": (
        [worker("a", slower(8), 10 * MEMORY_S), worker("b", LEARNED, 9.5 * MEMORY_S)], 8, 8,
    ),
    "a worker of another role says nothing": (
        [worker("a", slower(8), 10 * MEMORY_S), worker("b", LEARNED, 0, role="prefill")], 8, 8,
    ),
    "nor one of another device": (
        [worker("a", slower(8), 10 * MEMORY_S), worker("b", LEARNED, 0, device="cuda")], 8, 8,
    ),
    "of others the median counts": (
        [worker("a", slower(8), 10 * MEMORY_S), worker("b", slower(90), 0),
         *(worker(name, LEARNED, 0) for name in "cd")],
        1, 1.01,
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_costs_that_are_believed(row: str) -> None:
    workers, least, most = ROWS[row]
    first = workers[0]
    costs = cost_pools(workers)[first.kind].costs_of(first)
    assert least - 1e-9 <= costs.step / LEARNED.step <= most + 1e-9
    assert costs.steps == first.costs.steps, "what it is bounded by stays its own"


def test_pools_of_many_workers_are_kept_for_a_while() -> None:
    few = [worker(f"w{number}", LEARNED, 0) for number in range(MAX_WORKERS_IN_MEDIANS)]
    pools = KeptPools()
    assert pools.of(len(few), few, few, NOW_S) is not pools.of(len(few), few, few, NOW_S)
    many = [*few, worker("one more", LEARNED, 0)]
    kept = pools.of(len(many), many, many, NOW_S)
    assert pools.of(len(many), many, many, NOW_S + 0.9 * POOLS_KEPT_S) is kept
    assert pools.of(len(many), many, many, NOW_S + 1.1 * POOLS_KEPT_S) is not kept
    other = worker("other", LEARNED, 0, device="cuda")
    assert other.kind in pools.of(len(many), [*many, other], [other], NOW_S + 1.2 * POOLS_KEPT_S), "it is priced now"


@pytest.mark.parametrize(("costs", "ago"), [(slower(8, steps=0), 0.0), (slower(8), 10 * MEMORY_S)])
def test_of_equal_decode_workers_none_goes_without(costs: StepCosts, ago: float) -> None:
    """Of 57 requests at once each of two gets about half, whatever one of them was believed to cost."""
    router, workers = Router(), [worker("a", costs, ago), worker("b", LEARNED, 0), worker("p", LEARNED, 0, "prefill")]
    picked: Counter[str] = Counter()
    for number in range(57):
        choice = router.pick(listed(workers), RouteRequest(200, output_tokens=20), NOW_S)
        assert choice is not None
        chosen = next(one for one in workers if one.record.epoch == choice.route.decode)
        chosen.awaits((f"r{number}", 1), 200)
        picked[choice.route.decode] += 1
    assert picked["a"] >= 20 and picked["b"] >= 20
