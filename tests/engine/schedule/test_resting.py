"""Decodes leave the cores of their host to prefill workers while more prompts land than sequences decode."""

import pytest

from contracts.messages.sampling import Limits
from engine.blocks.manager import BlockManager
from engine.schedule.resting import CHECK_INTERVAL_S, Resting
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.sequence import Sequence
from tests.engine.blocks.test_manager import spec
from tests.engine.schedule.test_scheduler import GREEDY, answered, job, planned

STEP_S = 0.05


def rested(decodes: int, landing: int, others_compute: bool, *times: float, step_s: float = STEP_S) -> list[float]:
    """Returns the rests at these times, after a step at 10 s, in ms."""
    resting = Resting(step_s)
    resting.seconds(10.0, decodes, 0, others_compute)
    return [round(1000 * resting.seconds(10.0 + at, decodes, landing, others_compute), 3) for at in times]


@pytest.mark.parametrize("decodes, landing, others", [(1, 1, True), (5, 4, True), (1, 9, False), (0, 9, True)])
def test_decodes_rest_only_for_more_prompts_that_others_compute(decodes: int, landing: int, others: bool) -> None:
    assert rested(decodes, landing, others, 0.01) == [0]
    assert rested(1, 2, True, 0.01) == [1000 * CHECK_INTERVAL_S]


def test_a_rest_ends_when_the_next_step_is_due_and_another_begins_behind_it() -> None:
    assert rested(2, 3, True, 0.01, 0.048, 0.051, 0.06, 0.102, 0.11) == [5, 2, 0, 5, 0, 5]
    assert rested(2, 3, True, 0.0, 0.01, step_s=0.0) == [0, 0], "a worker that never rests"


def test_a_clock_that_is_set_back_prolongs_no_rest() -> None:
    assert rested(1, 2, True, 0.01, -3600.0, -3599.99) == [5, 0, 5]


def worker(landing: int) -> tuple[Scheduler, list[Sequence]]:
    """Makes a decode worker where one sequence has landed, and the KV of `landing` prompts is awaited."""
    limits = SchedulerLimits(max_batch_tokens=64, max_sequences=8, max_model_len=1000, rest_step_s=STEP_S)
    made = Scheduler(BlockManager(spec(4), [101]), limits)
    sequences = [job(8, landing=True) for _ in range(1 + landing)]
    for each in sequences:
        made.add(each)
    assert made.plan(1.0) is None and len(made.take_admitted()) == 1 + landing
    made.adopt(sequences[0], {0: [7]}, GREEDY, Limits(8))
    return made, sequences


def test_resting_decodes_join_a_step_when_it_is_due_or_as_many_decode_as_land() -> None:
    made, sequences = worker(landing=2)
    assert made.plan(1.01, True) is None
    assert made.next_deadline == pytest.approx(1.01 + CHECK_INTERVAL_S)
    assert made.load().backlog.sequences == 0, "nothing has decoded yet"
    plan = made.plan(1.0 + STEP_S, True)
    assert plan is not None and len(plan.works) == 1 and not made.rests
    answered(made, plan)
    assert made.plan(1.06, True) is None and made.load().backlog.sequences == 1, "it still decodes"
    made.adopt(sequences[1], {0: [7]}, GREEDY, Limits(8))
    plan = made.plan(1.07, True)
    assert plan is not None and len(plan.works) == 2
    answered(made, plan)
    assert made.next_deadline == sequences[0].deadline


def test_without_others_at_work_nothing_rests() -> None:
    made, _ = worker(landing=2)
    assert len(planned(made).works) == 1 and not made.rests


def test_a_resting_worker_computes_its_own_prompts_and_grants_blocks_to_others() -> None:
    made, _ = worker(landing=2)
    made.add(job(9))
    made.add(job(10, landing=True))
    plan = made.plan(1.01, True)
    assert plan is not None and [len(work.token_ids) for work in plan.works] == [9]
    assert len(made.take_admitted()) == 2
    answered(made, plan)
