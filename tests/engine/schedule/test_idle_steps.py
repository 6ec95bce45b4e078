"""Shows that what an idle worker believes of its steps comes true by itself, and what that takes."""

import pytest
from msgspec import structs

from contracts.kv.spec import KVGroup, KVSpec
from engine.blocks.manager import BlockManager
from engine.plan import StepPlan
from engine.schedule.idle_steps import DECODE_STEPS, MAX_SESSION_S, MAX_SHARE, MEASURE_AFTER_S, IdleSteps
from pricing.step_costs.fit import StepFit
from pricing.step_costs.steps import StepCosts, StepWork, pairs_of

TRUE = StepCosts(step=0.0015, prompt_token=0.0001, pair=1e-8, sequence=0.0002, context_token=1e-7)
TOO_SLOW = 25.0
FULL = KVSpec((KVGroup("full", (0, 1), 4, 64),), "layout", "weights")
WINDOWED = KVSpec((KVGroup("window", (1,), 4, 64, window=6), KVGroup("full", (0, 2), 4, 64)), "layout", "weights")


def slower(costs: StepCosts, factor: float) -> StepCosts:
    names = ("step", "prompt_token", "pair", "sequence", "context_token")
    return structs.replace(costs, **{name: factor * getattr(costs, name) for name in names})


def work_of(plan: StepPlan) -> StepWork:
    (work,) = plan.works
    tokens = len(work.token_ids)
    return StepWork(sequences=1, context=work.start + 1) if work.start else StepWork(tokens, pairs_of(0, tokens))


def session(steps: IdleSteps, now: float, costs: StepCosts) -> float:
    """Runs a session on a device whose steps cost this much; returns the moment at which it is over."""
    for plan in steps.begin(now):
        seconds = costs.seconds(work_of(plan))
        now += seconds
        steps.took(plan, seconds)
        if steps.is_over(now):
            break
    steps.end(now)
    return now


@pytest.mark.parametrize("spec", [FULL, WINDOWED], ids=["full", "windowed"])
@pytest.mark.parametrize("learned", [0, 200], ids=["seed", "learned"])
def test_costs_that_are_far_too_high_come_true(spec: KVSpec, learned: int) -> None:
    """Those of a start beside other work, and those of requests that ran beside it: both were believed for ever."""
    slow = slower(TRUE, TOO_SLOW)
    fit = StepFit(slow)
    for _ in range(learned):
        fit.learn(StepWork(sequences=1, context=50), slow.decode_seconds(1, 50))
    blocks = BlockManager(spec, [33] * len(spec.groups), ahead=16)
    steps, now = IdleSteps(blocks, fit, 64, decodes=True), 0.0
    assert fit.costs.decode_seconds(1, 50) > 0.020
    for _ in range(3):
        now += steps.seconds_left(now)
        now = session(steps, now, TRUE)
    assert now < 2.5 * MEASURE_AFTER_S
    assert fit.costs.decode_seconds(1, 50) == pytest.approx(TRUE.decode_seconds(1, 50), rel=0.2)
    assert fit.costs.prompt_seconds(200, pairs_of(0, 200)) < 3 * TRUE.prompt_seconds(200, pairs_of(0, 200))
    assert 0 < fit.costs.fastest < 0.0025
    assert blocks.used_count == 0


def test_a_worker_that_computes_only_prompts_learns_what_a_step_and_what_a_token_takes() -> None:
    fit = StepFit(slower(TRUE, TOO_SLOW))
    steps, now = IdleSteps(BlockManager(FULL, [33], ahead=16), fit, 64, decodes=False), 0.0
    for _ in range(6):
        now = session(steps, now + steps.seconds_left(now), TRUE)
    assert fit.costs.prompt_seconds(200, pairs_of(0, 200)) == pytest.approx(0.0217, rel=0.25)
    assert not fit.costs.fastest


def test_a_session_takes_a_share_of_the_time_at_most_and_waits_for_the_steps_of_requests() -> None:
    blocks = BlockManager(FULL, [33], ahead=16)
    steps = IdleSteps(blocks, StepFit(), 64, decodes=True)
    assert steps.seconds_left(0.0) == 0, "at once when a worker begins"
    large = slower(TRUE, 1000.0)
    ended = session(steps, 0.0, large)
    assert MAX_SESSION_S < ended < MAX_SESSION_S + large.prompt_seconds(16, pairs_of(0, 16))
    assert steps.seconds_left(ended) == pytest.approx(ended / MAX_SHARE)
    quick = IdleSteps(blocks, StepFit(), 64, decodes=True)
    quick.stepped(7.0)
    assert quick.seconds_left(7.0) == MEASURE_AFTER_S
    ended = session(quick, 9.0, TRUE)
    assert quick.seconds_left(ended) == pytest.approx(max(MEASURE_AFTER_S, (ended - 9.0) / MAX_SHARE))


def test_what_was_computed_is_in_no_cache_and_a_full_pool_is_left_alone() -> None:
    blocks = BlockManager(FULL, [9], ahead=16)
    steps = IdleSteps(blocks, StepFit(), 64, decodes=True)
    plans = steps.begin(0.0)
    (table,) = plans[0].works[0].blocks
    assert blocks.used_count == len(table) == (16 + DECODE_STEPS) / 4
    assert [plan.works[0].start for plan in plans[-DECODE_STEPS:]] == list(range(16, 16 + DECODE_STEPS))
    steps.end(0.0)
    assert blocks.used_count == blocks.cached_count == 0
    taken = blocks.allocate(32)
    assert taken is not None and steps.begin(2.0) == []
    steps.end(2.0)
    blocks.free(taken)


def test_a_text_is_never_longer_than_a_step_or_a_model_takes() -> None:
    steps = IdleSteps(BlockManager(FULL, [33], ahead=16), StepFit(), 20, decodes=True)
    ends = [plan.works[0].start + len(plan.works[0].token_ids) for plan in steps.begin(0.0)]
    assert ends == [16, 16, 17, 18, 19, 20]


def test_a_text_is_never_longer_than_the_blocks_that_a_window_begins_with() -> None:
    blocks = BlockManager(WINDOWED, [7, 33], ahead=16)
    works = [plan.works[0] for plan in IdleSteps(blocks, StepFit(), 64, decodes=True).begin(0.0)]
    room = min(4 * len(table) for table in works[0].blocks)
    assert room < 16 + DECODE_STEPS and max(work.start + len(work.token_ids) for work in works) == room
