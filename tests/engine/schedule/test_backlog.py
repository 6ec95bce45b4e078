"""The scheduler tells what is before it: tokens that are still to be computed, what decodes, and what steps cost."""

from engine.blocks.manager import BlockManager
from engine.plan import StepResult
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from pricing.routes.backlog import Backlog
from pricing.step_costs.fit import StepFit
from pricing.step_costs.steps import StepCosts, pairs_of
from tests.engine.blocks.test_manager import spec
from tests.engine.schedule.scheduler_by_hand import added, job, scheduler, step


def tell(engine: Scheduler) -> tuple[int, int, float, int, int]:
    found = engine.load().backlog
    return found.prompts, found.tokens, found.pairs, found.sequences, found.context


def test_what_waits_and_what_is_left_is_counted() -> None:
    engine = scheduler(batch=8, sequences=2)
    assert engine.load().backlog == Backlog(free_blocks=100)
    added(engine, job(20), job(10), job(6), job(5, landing=True))
    assert tell(engine) == (4, 36, pairs_of(0, 20) + pairs_of(0, 10) + pairs_of(0, 6), 0, 0)
    step(engine)
    assert tell(engine)[1:3] == (28, pairs_of(8, 12) + pairs_of(0, 10) + pairs_of(0, 6))
    step(engine)
    step(engine)
    assert tell(engine) == (3, 12, pairs_of(4, 6) + pairs_of(0, 6), 0, 0)
    step(engine)  # the first decodes for the first time
    assert tell(engine)[3:] == (1, 21)
    assert engine.load().backlog.free_blocks == 100 - engine.load().blocks_used


def test_what_the_cache_has_is_not_before_it() -> None:
    engine = scheduler()
    first = job(20, max_tokens=1, salt="tenant")
    added(engine, first)
    step(engine)
    added(engine, job(20, salt="tenant"))
    assert tell(engine)[:3] == (1, 1, pairs_of(19, 1))


def test_nothing_is_before_it_when_all_have_gone() -> None:
    engine = scheduler(batch=8, sequences=1)
    sequences = [job(20), job(10)]
    added(engine, *sequences)
    step(engine)
    for sequence in sequences:
        engine.release(sequence)
    assert tell(engine) == (0, 0, 0.0, 0, 0)


def test_who_is_preempted_is_before_it_again() -> None:
    engine = scheduler(8, sequences=4)
    added(engine, job(15, max_tokens=9), job(14, max_tokens=9))
    while not engine.load().preemptions:
        step(engine)
    assert tell(engine)[:2] == (1, 16)


def test_steps_teach_what_they_cost() -> None:
    fit = StepFit()
    engine = Scheduler(
        BlockManager(spec(4), [101]), SchedulerLimits(max_batch_tokens=8, max_sequences=2, max_model_len=100), fit=fit
    )
    costs = StepCosts(step=0.5, prompt_token=0.25)
    now = 100.0
    for length in range(1, 40):
        sequence = job(length, max_tokens=1)
        added(engine, sequence)
        while (plan := engine.plan(now)) is not None:
            now += costs.step + costs.prompt_token * sum(len(work.token_ids) for work in plan.works)
            engine.apply(StepResult(plan.step, [[1] if work.sampling else [] for work in plan.works]), now)
    told = engine.load()
    assert told.costs.steps == told.steps
    assert abs(told.costs.step - 0.5) < 0.05 and abs(told.costs.prompt_token - 0.25) < 0.02
    assert told.costs.error < 0.05
    assert 500 < told.backlog.step_ms < 3000
