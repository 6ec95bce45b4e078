"""One plan's step is computed several times in a row, while nothing else is to be decided."""

from engine.plan import StepResult
from engine.schedule.scheduler import Scheduler
from tests.engine.schedule.scheduler_by_hand import added, job, planned, scheduler, step


def repeated(of: Scheduler, most: int) -> int:
    """Plans a step, answers it as often as it may be repeated, and returns how often."""
    plan = planned(of)
    times = of.repeat(most)
    of.apply(StepResult(plan.step, [[1] * times for _ in plan.works], repeats=times), 2.0)
    of.check_invariants()
    return times


def test_a_repeated_step_goes_on_as_if_each_had_been_planned() -> None:
    engine, short, long = scheduler(), job(4, max_tokens=6), job(9, max_tokens=20)
    added(engine, short, long)
    assert repeated(engine, 100) == 1, "a step with prompts"
    assert repeated(engine, 3) == 3 and (short.computed, long.computed) == (7, 12)
    engine.add(job(5))
    assert step(engine) == [(1, 7, 1), (2, 12, 1), (3, 0, 5)], "no token of an earlier step is left to compute"
    assert repeated(engine, 100) == 1, "the first ends"
    assert short.is_over and long.emitted == 6


def test_where_blocks_are_short_a_step_is_repeated_half_as_often() -> None:
    engine, going = scheduler(5), job(6, max_tokens=14)
    added(engine, job(4, hand_off=True), going)
    step(engine)
    assert repeated(engine, 100) == 13 // 2, "nineteen tokens need five blocks, of which a parked sequence has one"
    assert going.computed == 12 and engine.load().blocks_used == 1 + 3
    assert repeated(engine, 4) == 4 and going.computed == 16, "the last block holds the tokens of fewer steps"


def test_repeated_steps_take_blocks_when_they_have_ended() -> None:
    engine, going = scheduler(), job(6, max_tokens=30)
    added(engine, going)
    step(engine)
    plan = planned(engine)
    assert engine.repeat(29) == 29 and engine.load().blocks_used == 2
    assert [engine.blocks_for(further) for further in (0, 1, 2, 28)] == [0, 0, 1, 7]
    engine.apply(StepResult(plan.step, [[1, 1, 1]], repeats=3), 2.0)
    assert going.computed == 9 and engine.load().blocks_used == 3
    engine.check_invariants()


def test_no_step_of_a_prompt_that_is_handed_off_is_repeated() -> None:
    engine = scheduler()
    engine.add(job(4, hand_off=True))
    assert repeated(engine, 100) == 1
