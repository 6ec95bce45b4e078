"""Growth: which sequence is preempted when blocks run out, and which never."""

from engine.schedule.sequence import SequenceState
from tests.engine.schedule.scheduler_by_hand import added, answered, job, planned, scheduler, step


def test_the_oldest_waits_for_landing_blocks_rather_than_be_preempted() -> None:
    engine = scheduler(6)
    oldest, landing = job(8), job(16, landing=True)
    added(engine, oldest, landing)
    assert step(engine) == [(1, 0, 8)]
    assert landing.state is SequenceState.LANDING
    assert engine.plan(1.0) is None and oldest.state is SequenceState.RUNNING and oldest.preemptions == 0
    engine.release(landing)
    assert step(engine) == [(1, 8, 1)]


def test_a_prefill_worker_s_sequence_takes_exactly_its_prompt_s_blocks_and_is_never_preempted() -> None:
    engine = scheduler(6)
    growing, handed = job(7), job(16, hand_off=True)
    added(engine, growing, handed)
    plan = planned(engine)
    assert [len(work.blocks[0]) for work in plan.works] == [2, 4]
    answered(engine, plan)
    assert handed.state is SequenceState.PARKED and len(handed.tokens) == 17
    step(engine)
    assert engine.plan(1.0) is None and handed.preemptions == 0  # `growing` wants a third block
    engine.release(handed)
    assert step(engine) == [(1, 8, 1)]


def test_a_prompt_that_is_to_be_handed_off_goes_on_when_blocks_run_out_for_others() -> None:
    engine = scheduler(4, batch=2)
    growing, handed = job(1), job(12, hand_off=True)
    added(engine, growing, handed)
    while growing.length <= 4:
        step(engine)
    assert step(engine) == [(2, 4, 2)]  # with what the stalled sequence leaves of the step
    assert growing.state is SequenceState.RUNNING and engine.load().preemptions == 0


def test_nobody_is_preempted_while_a_step_in_flight_writes() -> None:
    engine = scheduler(4, in_flight=2)
    added(engine, job(7), job(7))
    answered(engine, planned(engine))
    in_flight = planned(engine)
    assert engine.plan(1.0) is None  # both want a third block
    assert engine.load().preemptions == 0
    answered(engine, in_flight)
    assert step(engine) == [(1, 8, 1)]
    assert engine.load().preemptions == 1
