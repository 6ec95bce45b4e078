"""Words of the dashboard about what would help, by the figures that lead to them."""

from collections.abc import Sequence

import pytest
from msgspec import structs

from contracts.slo import Objective
from dashboard.reading.advice import LatelySeen, WorkersLately, advise, lately
from dashboard.reading.source import Snapshot, WorkerView
from infra.redis.records import Memory, StatsSample, WorkerRecord
from infra.redis.worker_load import WorkerLoad
from pricing.roofline.device_use import DeviceFigures, StepTotals
from tests.dashboard.samples import DECODE, PREFILL, finished, gateway, worker

CALM = LatelySeen(20, 10.0, 200.0, 30.0, {"prefill": WorkersLately(1, 0.5, 0.2), "decode": WorkersLately(1, 0.5, 0.2)})


def with_roles(seen: LatelySeen, prefill: WorkersLately | None, decode: WorkersLately) -> LatelySeen:
    return structs.replace(seen, roles={**({"prefill": prefill} if prefill else {}), "decode": decode})


@pytest.mark.parametrize(
    ("prefill", "decode", "said"),
    [
        (WorkersLately(1, 0.95, 0.2), WorkersLately(1, 0.3, 0.2), "decode workers are 30% busy: add a prefill worker."),
        (WorkersLately(1, 0.95, 0.2), WorkersLately(2, 0.3, 0.2), "or start one decode worker fewer in its favour"),
        (
            WorkersLately(1, 0.95, 0.2),
            WorkersLately(1, 0.8, 0.2),
            "prefill workers are 95% and decode workers 80% busy",
        ),
        (
            WorkersLately(1, 0.4, 0.2),
            WorkersLately(1, 0.6, 0.97),
            "decode workers' KV is 97% in use: add a decode worker",
        ),
        (WorkersLately(1, 0.4, 0.2), WorkersLately(1, 0.6, 0.2), "requests come in bursts"),
        (None, WorkersLately(2, 0.99, 0.2), "workers are 99% busy: add a worker."),
    ],
)
def test_prompts_that_wait(prefill: WorkersLately | None, decode: WorkersLately, said: str) -> None:
    told = advise(with_roles(structs.replace(CALM, wait_ms=1200.0), prefill, decode))
    assert told.startswith("Prompts wait 1.20 s, ") and said in told


def test_slow_tokens_name_what_binds_and_a_remedy() -> None:
    slow = structs.replace(CALM, tpot_ms=150.0)
    bound = with_roles(slow, WorkersLately(1, 0.3, 0.2), WorkersLately(1, 0.98, 0.5, "memory"))
    assert "98% busy (reading memory binds their steps): add a decode worker" in advise(bound)
    assert "a prefill worker (--prefill 1)" in advise(with_roles(slow, None, WorkersLately(1, 0.98, 0.5)))
    assert "TPOT" not in advise(structs.replace(bound, objective=Objective(None, 200.0)))


def test_spare_workers_are_named_only_if_the_others_stay_idle() -> None:
    spare = with_roles(CALM, WorkersLately(2, 0.1, 0.1), WorkersLately(2, 0.3, 0.1))
    assert "one prefill worker fewer would do" in advise(spare)
    assert advise(CALM) == "Nothing waits; prefill workers 50% and decode workers 50% busy."


def test_too_few_requests_say_nothing() -> None:
    assert advise(structs.replace(CALM, requests=4)) == ""


def test_a_reading_is_summarized_with_the_use_of_devices() -> None:
    memory, figures = Memory(weights_bytes=10**9, token_bytes=10**5), DeviceFigures(5e8, 1e11, 1e14)
    records = [worker(PREFILL, memory=memory, figures=figures), worker(DECODE, memory=memory, figures=figures)]

    def view(record: WorkerRecord) -> WorkerView:
        return WorkerView(record.epoch, record.role, record.load, "ready", 0.0, record)

    def sample(at: float, steps: int) -> StatsSample:
        totals = StepTotals(steps, 0.02 * steps, 8 * steps, 800 * steps)
        return StatsSample(at, DECODE, "decode", WorkerLoad(step_totals=totals))

    now = 1000.0
    ended = [
        finished(number, ended_at=now - number, ttft_ms=900.0, prefill_ms=100.0, e2e_ms=2000.0)
        for number in range(1, 8)
    ]
    samples: dict[str, Sequence[StatsSample]] = {
        DECODE: (sample(now - 120, 0), sample(now - 50, 100), sample(now, 1600))
    }
    seen = lately(Snapshot(now, [view(record) for record in records], [gateway()], ended, samples))
    assert (seen.requests, seen.wait_ms, seen.ttft_ms) == (7, 800.0, 900.0)
    assert seen.roles["prefill"].busy == 0 and seen.roles["decode"].busy == pytest.approx(0.6)
    assert seen.roles["decode"].binds == "memory" and seen.objective == Objective(1500.0, 80.0)
