"""A prompt's scores: every token's row is computed once, whatever the cache knows and whoever gives way."""

from msgspec import structs

from contracts.messages.sampling import Sampling
from engine.schedule.progress import SequenceProgress
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from tests.engine.blocks.test_manager import spec
from tests.engine.schedule.scheduler_by_hand import added, job, scheduler
from tests.engine.strict_executor import StrictExecutor, placed

SCORED = Sampling(seed=1, logprobs=1, prompt_logprobs=2)


def run(engine: Scheduler, *sequences: Sequence, executor: StrictExecutor | None = None) -> list[SequenceProgress]:
    """Runs steps until every sequence has ended."""
    executor = executor or StrictExecutor(spec(4))
    for each in sequences:
        executor.salts[each.id], executor.known[each.id] = each.prompt.salt, each.tokens
    progress: list[SequenceProgress] = []
    while (plan := engine.plan(1.0)) is not None:
        executor.move(engine.take_moves())
        executor.launch(plan)
        progress += engine.apply(executor.collect(), 2.0)
        engine.check_invariants()
    return progress


def told(progress: list[SequenceProgress], sequence: Sequence) -> None:
    """Checks that a prompt's scores came once, with the first token, and each token's with the token."""
    own = [each for each in progress if each.sequence is sequence]
    prompt = sequence.prompt.token_ids
    assert [each.prompt_scores for each in own] == [placed(prompt[1:], 1, 2)] + [None] * (len(own) - 1)
    assert all(each.scores == placed(each.tokens, each.index, 1) for each in own) and own[-1].finish


def test_who_gives_way_in_mid_prompt_keeps_what_was_scored() -> None:
    engine = scheduler(8, batch=8)
    old, new = job(12, 20), job(18, 2)
    new.sampling = SCORED
    added(engine, old, new)
    progress = run(engine, old, new)
    assert new.preemptions == 1 and 4 <= new.lost_blocks * 4 < 18, "part of the prompt was computed"
    told(progress, new)


def test_the_cache_is_not_asked_but_learns() -> None:
    engine, executor = scheduler(20, batch=8), StrictExecutor(spec(4))
    first, second = job(13, 2, salt="same"), job(13, 2, salt="same")
    first.sampling = second.sampling = SCORED
    added(engine, first)
    progress = run(engine, first, executor=executor)
    added(engine, second)
    progress += run(engine, second, executor=executor)
    assert second.cached_tokens == 0
    told(progress, first)
    told(progress, second)
    third = job(13, 2, salt="same")
    third.sampling = structs.replace(SCORED, prompt_logprobs=None)
    added(engine, third)
    run(engine, third, executor=executor)
    assert third.cached_tokens == 12


def test_a_prompt_of_one_token_has_none() -> None:
    engine = scheduler(8)
    lone = job(1, 1)
    lone.sampling = SCORED
    added(engine, lone)
    (progress,) = run(engine, lone)
    assert progress.prompt_scores is None and progress.scores is not None
