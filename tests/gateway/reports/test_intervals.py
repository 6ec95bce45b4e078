"""What a gateway sums up in an interval, for the history."""

from msgspec import structs

from contracts.slo import Objective
from gateway.reports.intervals import IntervalSums, bucket
from gateway.workers.worker import Worker
from infra.redis.records import INTERVAL_S, LATENCY_STEPS, FinishedRecord, RoleUse, TenantUse, WorkerRecord
from infra.redis.worker_load import WorkerLoad

GOOD = FinishedRecord("r", "finished", "stop", 9.0, "m", 30, 5, 100.0, 10.0, 140.0, 0, 1.0, 0, 0, 20, "p", "d", 1, True)
LATE = structs.replace(GOOD, good=False, objective=Objective(50.0, 20.0), tenant="acme")
REFUSED = structs.replace(GOOD, outcome="refused", reason="no_workers", good=False, output_tokens=0)


def worker(load: WorkerLoad) -> Worker:
    record = WorkerRecord("e", "decode", "", "", "m", "f", "c", 16, 99, "cpu", "fp32", 0.0)
    return Worker(structs.replace(record, load=load))


def test_an_interval_ends_with_the_servers_clock_and_has_the_sums_of_its_requests() -> None:
    sums = IntervalSums("g")
    workers = [worker(WorkerLoad(running=3, waiting=1, blocks_used=30, blocks_total=100))]
    workers += [worker(WorkerLoad(running=1, blocks_used=0, blocks_total=100))]
    assert sums.sample(workers, 4, 10 * INTERVAL_S + 1) is None
    for record in (GOOD, LATE, REFUSED):
        sums.ended(record)
    assert sums.sample([], 0, 11 * INTERVAL_S - 0.1) is None
    found = sums.sample(workers, 0, 11 * INTERVAL_S)
    assert found is not None and (found.gateway, found.ended_at) == ("g", 11 * INTERVAL_S)
    assert (found.outcomes, found.missed) == ({"good": 1, "late": 1, "refused": 1}, {"ttft": 1})
    assert (found.failed, found.refused) == ({}, {"no_workers": 1})
    assert (found.ttft, found.tpot) == ({bucket(100.0): 2}, {bucket(10.0): 2})
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (60, 40, 10)
    assert (found.waiting, found.roles) == (2.0, {"decode": RoleUse(2.0, 0.5, 0.15)})
    assert found.tenants == {"acme": TenantUse(1, 0, 30, 5)}
    following = sums.sample([], 0, 12 * INTERVAL_S)
    assert following is not None and not following.outcomes and following.roles["decode"].running == 4.0


def test_a_bucket_is_less_than_an_eighth_above_its_time() -> None:
    for ms in (0.1, 1.0, 3.7, 99.9, 100.0, 7e5):
        assert ms <= 10 ** (bucket(ms) / LATENCY_STEPS) * (1 + 1e-9) < 1.125 * ms
    assert bucket(0.0) == bucket(0.1)
