"""Windows: a sequence holds what its next query sees and what is being computed, and whoever has begun gets on."""

from collections.abc import Iterator
from random import Random

import pytest

from contracts.ids import AttemptKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from engine.blocks.manager import BlockManager
from engine.plan import NULL_BLOCK
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.sequence import Sequence, SequenceState
from tests.engine.blocks.test_manager import spec
from tests.engine.schedule.scheduler_by_hand import answered, job, planned, step
from tests.engine.strict_executor import StrictExecutor, reference

BLOCK, WINDOW = 4, 32
TEXT_TOKENS = 8 * WINDOW
LEAST = WINDOW // BLOCK + 1
"""Blocks that a query's window may touch."""


def scheduler(
    counts: tuple[int, ...], *, batch: int = 16, in_flight: int = 1, window: int = WINDOW, ahead: int = 0
) -> Scheduler:
    """A group with a window, and one that keeps all, with so many blocks beside the null block."""
    shapes = [(BLOCK, window), (BLOCK, 0)][: len(counts)]
    blocks = BlockManager(spec(*shapes), [count + 1 for count in counts], ahead=ahead or batch * in_flight)
    return Scheduler(
        blocks,
        SchedulerLimits(
            max_batch_tokens=batch, max_sequences=8, max_model_len=4 * TEXT_TOKENS, max_in_flight=in_flight
        ),
    )


def held(sequence: Sequence, group: int = 0) -> int:
    return sum(block != NULL_BLOCK for block in sequence.blocks[group])


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_text_of_eight_windows_holds_one_of_them_and_what_is_computed(in_flight: int) -> None:
    engine = scheduler((80, 100), batch=16, in_flight=in_flight)
    text = job(TEXT_TOKENS, TEXT_TOKENS // 4)
    engine.add(text)
    prompt: list[int] = []
    answer: list[int] = []
    for _ in until_idle(engine, in_flight):
        if text.blocks:
            (answer if text.computed >= TEXT_TOKENS else prompt).append(held(text))
            assert held(text, 1) >= len(text.tokens) // BLOCK
    ahead = in_flight * 16 // BLOCK
    assert max(prompt) == LEAST + ahead, "a window, and the chunks of the steps under way"
    assert set(answer) <= {LEAST - 1, LEAST, LEAST + in_flight - 1}
    assert engine.load().preemptions == 0 and text.state is SequenceState.ENDED


def until_idle(engine: Scheduler, in_flight: int) -> Iterator[None]:
    """Runs as the engine loop does, and stops at each plan."""
    flying = []
    while True:
        plan = engine.plan(1.0)
        if plan is not None:
            flying.append(plan)
        yield
        engine.check_invariants()
        if plan is None and not flying:
            return
        if plan is None or len(flying) == in_flight:
            answered(engine, flying.pop(0))


def test_a_pool_of_one_window_serves_a_text_of_any_length_where_every_layer_has_one() -> None:
    engine = scheduler((LEAST + 4,), batch=16)
    text = job(TEXT_TOKENS, 60)
    engine.add(text)
    while text.state is not SequenceState.ENDED:
        step(engine)
    assert engine.load().preemptions == 0 and engine.load().blocks_used == 0


def test_prompts_that_share_blocks_never_wait_for_them_once_they_have_begun() -> None:
    """No block of a window may be counted once for two that hold it: each will give its own back at another time."""
    draw = Random(0)
    waited = 0
    for _ in range(60):
        batch = draw.choice([8, 20, 40])  # one prompt does not take all of a step
        engine = scheduler((draw.randint(5, 20), 60), batch=batch, window=draw.choice([6, 12]), ahead=4)
        prompts = []
        for number in range(draw.randint(2, 6)):
            tokens = [*range(draw.choice([8, 21, 40])), *[1000 + number] * draw.randint(1, 40)]
            made = Sequence(
                AttemptKey(f"r-{number}", 0, 1),
                "gateway",
                Prompt(tokens, len(tokens)),
                50.0,
                Sampling(seed=1),
                Limits(9),
                hand_off=True,
            )
            engine.add(made)
            prompts.append(made)
        while any(each.state is not SequenceState.ENDED for each in prompts):
            begun = [each for each in prompts if each.state is SequenceState.RUNNING]
            before = [each.planned for each in begun]
            plan = planned(engine)
            full = sum(len(work.token_ids) for work in plan.works) == batch
            for each, at in zip(begun, before, strict=True):
                assert each.planned > at or full, "the step has room for it, but no block is its own"
            answered(engine, plan)
            for each in prompts:
                if each.state is SequenceState.PARKED:
                    engine.release(each)
            waited += engine.load().waiting > 0
    assert waited


def test_what_lands_gets_no_block_that_a_step_under_way_still_reads() -> None:
    """Bytes land without a word to the device, which may be in the middle of a step."""
    engine = scheduler((7, 60), batch=20, in_flight=2, window=12)
    executor = StrictExecutor(spec((BLOCK, 12), (BLOCK, 0)))
    runner, landing = job(34, 20, salt="a"), job(12, landing=True, salt="b")
    for each in (runner, landing):
        engine.add(each)
        executor.salts[each.id], executor.known[each.id] = each.prompt.salt, each.tokens
    landed = False
    while runner.state is not SequenceState.ENDED:
        plan = engine.plan(1.0)
        executor.move(engine.take_moves())
        if plan is not None:
            executor.launch(plan)
        if landing.state is SequenceState.LANDING and not landed:
            landed = executor.in_flight == 2
            executor.land(landing.tokens, landing.blocks, "b", landing.held_blocks)
        if plan is None or executor.in_flight == 2:
            engine.apply(executor.collect(), 2.0)
    assert landed and runner.tokens.tolist() == reference(list(range(100, 134)), 34, runner.sampling, 0, 54, False)


def test_a_landing_prompt_takes_its_windows_only() -> None:
    engine = scheduler((LEAST, 100))
    engine.add(landing := job(TEXT_TOKENS, landing=True))
    assert engine.plan(1.0) is None and engine.take_admitted() == [landing]
    assert (held(landing), held(landing, 1)) == (WINDOW // BLOCK, TEXT_TOKENS // BLOCK)
    assert landing.held_blocks == ((TEXT_TOKENS - WINDOW + 1) // BLOCK, 0)
    assert landing.blocks[0][: landing.held_blocks[0]] == [NULL_BLOCK] * landing.held_blocks[0]
    engine.adopt(landing, {0: [7]}, landing.sampling, Limits(9))
    while landing.state is not SequenceState.ENDED:
        step(engine)


def test_blocks_of_a_window_that_are_here_need_not_land() -> None:
    engine = scheduler((40, 200))
    engine.add(first := job(TEXT_TOKENS, 9, salt="one"))
    while first.state is not SequenceState.ENDED:
        step(engine)
    longer = Sequence(
        AttemptKey("next", 0, 1), "gateway", Prompt([*first.tokens, *range(10)], TEXT_TOKENS, "one"), 50.0, landing=True
    )
    engine.add(longer)
    engine.plan(1.0)
    whole = (TEXT_TOKENS + 8) // BLOCK  # the last token's KV was never computed
    assert longer.held_blocks == (whole, whole)


@pytest.mark.parametrize(("sent", "known"), [(0, 57), (4, 57), (2, 58), (1, 58), (8, 57)])
def test_a_first_block_of_which_some_tokens_do_not_come_is_not_found_by_others(sent: int, known: int) -> None:
    """The query behind 261 tokens sees those from 230 on: those of our block 57 begin with 228."""
    engine = scheduler((40, 200))
    engine.add(landing := job(TEXT_TOKENS + 5, landing=True))
    landing.sent_block_tokens = sent
    engine.plan(1.0)
    assert landing.held_blocks[0] == 57 and landing.known[0] == known


def test_the_window_is_found_that_a_shorter_prompt_ended_with() -> None:
    """A longer text shares it: what is before the window is gone, and not needed."""
    engine = scheduler((2 * LEAST + 4, 200), batch=16)
    engine.add(first := job(TEXT_TOKENS, 1, salt="one"))
    while first.state is not SequenceState.ENDED:
        step(engine)
    tokens = [*first.tokens[:TEXT_TOKENS], *range(40)]
    engine.add(second := Sequence(AttemptKey("2", 0, 1), "gateway", Prompt(tokens, len(tokens), "one"), 50.0))
    engine.plan(1.0)
    assert second.cached_tokens == TEXT_TOKENS


def test_without_its_window_a_text_is_computed_again_though_all_else_is_here() -> None:
    engine = scheduler((LEAST + 4, 200), batch=16)
    for salt in ("one", "two"):
        engine.add(each := job(TEXT_TOKENS, 1, salt=salt))
        while each.state is not SequenceState.ENDED:
            step(engine)
    engine.add(again := job(TEXT_TOKENS + 8, 1, salt="one"))
    engine.plan(1.0)
    assert again.cached_tokens == 0, "the window's blocks gave way to the other text's"


@pytest.mark.parametrize(("windows", "found"), [(60, TEXT_TOKENS - 4), (LEAST + 4, 0)])
def test_blocks_come_back_from_the_host_tier_where_the_window_behind_them_is_here(windows: int, found: int) -> None:
    """What a window gives up does not go there: without it, what the others have is of no use."""
    blocks = BlockManager(spec((BLOCK, WINDOW), (BLOCK, 0)), [windows + 1, TEXT_TOKENS // BLOCK + 3], 100, ahead=16)
    engine = Scheduler(blocks, SchedulerLimits(max_batch_tokens=16, max_sequences=8, max_model_len=4 * TEXT_TOKENS))
    for salt in ("one", "two"):
        engine.add(each := job(TEXT_TOKENS, 1, salt=salt))
        while each.state is not SequenceState.ENDED:
            step(engine)
        assert all(move.group == 1 for move in engine.take_moves() if move.kind != "copy")
    engine.add(again := job(TEXT_TOKENS - 3, 1, salt="one"))
    engine.plan(1.0)
    assert again.cached_tokens == found
    assert any(move.kind == "in" for move in engine.take_moves()) == bool(found)
