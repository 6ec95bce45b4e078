"""Predictions of steps: each part of the work costs what it costs, and prompts take as many steps as have room."""

from math import inf

import pytest
from msgspec import structs

from pricing.routes.backlog import Backlog, Owner, PromptWork, TenantTokens
from pricing.routes.links import transfer_seconds
from pricing.routes.wait import first_token_seconds
from pricing.step_costs.steps import MIN_CHUNK_TOKENS, DecodeYield, StepCosts, StepWork, pairs_of

STEP_COSTS = StepCosts(step=1.0, prompt_token=0.1, pair=0.001, sequence=0.5, context_token=0.01)
BOUNDED = StepCosts(step=1.0, prompt_token=0.1, sequence=0.5, context_token=0.01, most_tokens=100, target=5.0)


def test_pairs_count_each_token_and_all_that_it_attends_to() -> None:
    for start, tokens in ((0, 1), (0, 7), (5, 1), (5, 4)):
        assert pairs_of(start, tokens) == sum(start + n + 1 for n in range(tokens))
    assert pairs_of(3, 10) == pairs_of(3, 4) + pairs_of(7, 6)


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        (StepWork(), 1.0),
        (StepWork(prompt_tokens=10), 2.0),
        (StepWork(prompt_tokens=10, pairs=1000), 3.0),
        (StepWork(sequences=4, context=100), 4.0),
        (StepWork(10, 1000, 4, 100), 6.0),
    ],
)
def test_a_step_takes_the_sum_of_its_parts(work: StepWork, seconds: float) -> None:
    assert STEP_COSTS.seconds(work) == pytest.approx(seconds)


def test_draft_tokens_cost_by_row_and_by_step() -> None:
    costs = structs.replace(STEP_COSTS, row=0.25, rows=2.0)
    assert costs.seconds(StepWork(sequences=4, context=100, rows=4)) == pytest.approx(4.0 + 1.0 + 2.0)


@pytest.mark.parametrize(
    ("sequences", "context", "chunk"),
    [
        (0, 0, 100),  # nobody decodes: as much as a step holds
        (2, 100, 20),  # 5 s less 1 + 1 + 1 leave 2 s
        (2, 0, 30),
        (8, 1000, MIN_CHUNK_TOKENS),  # slow already: prompts get on all the same
    ],
)
def test_a_chunk_is_what_the_target_leaves(sequences: int, context: int, chunk: int) -> None:
    assert BOUNDED.chunk(sequences, context) == chunk
    assert STEP_COSTS.chunk(sequences, context) > 1 << 20  # without bounds


@pytest.mark.parametrize(
    ("tokens", "sequences", "context", "seconds"),
    [
        (0, 0, 0, 0.0),
        (100, 0, 0, 11.0),  # one step
        (101, 0, 0, 12.1),  # two
        (60, 2, 100, 6.0 + 3 * 3.0),  # three chunks of 20, beside decodes of 3 s
    ],
)
def test_a_prompt_takes_as_many_steps_as_have_room(tokens: int, sequences: int, context: int, seconds: float) -> None:
    assert BOUNDED.prompt_seconds(tokens, pairs_of(0, tokens), sequences, context) == pytest.approx(seconds)


def test_a_token_takes_its_share_of_a_step_and_of_what_guesses_cost_there() -> None:
    costs = structs.replace(STEP_COSTS, row=0.25, rows=2.0)
    step = costs.decode_seconds(4, 100)
    assert costs.token_seconds(4, 100, DecodeYield()) == step
    assert costs.token_seconds(4, 100, DecodeYield(2.0, 3.0)) == pytest.approx((step + 2.0 + 4 * 3 * 0.25) / 2)


def test_the_first_token_comes_behind_what_waits() -> None:
    idle, busy = Backlog(), Backlog(prompts=2, tokens=100)
    assert first_token_seconds(BOUNDED, idle, PromptWork(50, 0)) == pytest.approx(6.0)
    assert first_token_seconds(BOUNDED, busy, PromptWork(50, 0)) == pytest.approx(17.0)  # 150 tokens in two steps
    assert first_token_seconds(BOUNDED, busy, PromptWork(50, 0), report_age=4.0) == pytest.approx(13.0)
    assert first_token_seconds(
        BOUNDED, Backlog(prompts=2, tokens=100, age_ms=3000), PromptWork(50, 0), 1.0
    ) == pytest.approx(13.0)
    assert first_token_seconds(BOUNDED, busy, PromptWork(50, 0), report_age=60.0) == pytest.approx(6.0), (
        "it is done with the others"
    )


def test_what_is_surely_not_computed_yet_is_waited_for_however_old_the_figures_are() -> None:
    """Predicts behind 300 tokens, of which 100 are in a step of 11 s, and `awaited` have given no first token yet."""
    busy, prompt = Backlog(prompts=3, tokens=300), PromptWork(100)
    whole = 44.0
    rows = {(0, 5.0): whole - 5, (0, 60.0): 11.0, (300, 5.0): whole - 5, (300, 60.0): whole - 6.6, (100, 60.0): 15.4}
    for (awaited, elapsed), expected in rows.items():
        assert first_token_seconds(BOUNDED, busy, prompt, elapsed, awaited) == pytest.approx(expected)
    aged = structs.replace(busy, age_ms=60_000.0)
    assert first_token_seconds(BOUNDED, aged, prompt, 0.0, 900) == pytest.approx(whole - 6.6), "no more than it told"


def test_a_short_prompt_passes_long_ones_and_no_others() -> None:
    """Steps of 50 tokens take 6 s and leave half of them to shorter prompts than the long one that leads."""
    costs = structs.replace(STEP_COSTS, most_tokens=50, shorter=0.5)
    step = costs.prompt_seconds(50, pairs_of(0, 50))
    alike = Backlog().and_prompts([PromptWork(20)] * 10)
    assert first_token_seconds(costs, alike, PromptWork(20)) == pytest.approx(
        costs.prompt_seconds(220, 11 * pairs_of(0, 20))
    ), "all that came before it"
    long = Backlog().and_prompts([PromptWork(400)])
    assert first_token_seconds(costs, long, PromptWork(20)) == pytest.approx(1.5 * step)
    both = long.and_prompts([PromptWork(20)] * 4)
    assert first_token_seconds(costs, both, PromptWork(20)) == pytest.approx(4.5 * step), "100 tokens, 25 in each step"
    assert first_token_seconds(costs, both, PromptWork(60)) > 9 * step, "it is long itself"


def test_attention_makes_long_contexts_cost_more() -> None:
    assert first_token_seconds(STEP_COSTS, Backlog(), PromptWork(10, 1000)) - first_token_seconds(
        STEP_COSTS, Backlog(), PromptWork(10, 0)
    ) == (pytest.approx(10 * 1000 * STEP_COSTS.pair))


def test_bytes_take_time_by_the_links_rate() -> None:
    assert transfer_seconds(100, 50.0) == 2.0
    assert transfer_seconds(0, 0.0) == 0.0
    assert transfer_seconds(1, 0.0) == inf


def test_a_prompt_is_taken_out_of_a_backlog_and_no_more_than_there_is() -> None:
    mine, theirs = Owner(1), Owner(2)
    both = Backlog(free_blocks=7).and_prompts([PromptWork(40, 0, mine), PromptWork(10, 5, theirs)])
    assert both.without(PromptWork(40, 0, mine)) == Backlog(free_blocks=7).and_prompts([PromptWork(10, 5, theirs)])
    rest = both.without(PromptWork(900, 0, mine))
    assert (rest.tokens, rest.shares) == (10, (TenantTokens(theirs, 10),)), "what is another's stays"
    assert Backlog(prompts=2, tokens=30).without(PromptWork(20, 0, mine)).tokens == 10, "nobody said whose it is"


def test_what_is_left_has_no_more_tokens_of_all_lengths_than_it_has() -> None:
    """A prompt's length is a guess where some of it may be computed; nobody waits less than nothing for the others."""
    costs = structs.replace(STEP_COSTS, most_tokens=128, shorter=0.5)
    backlog = Backlog().and_prompts([PromptWork(200), PromptWork(300), PromptWork(130)])
    for guessed, left in ((200, 430), (60, 370), (60, 310), (250, 60)):
        backlog = backlog.without(PromptWork(guessed))
        assert (backlog.tokens, sum(backlog.lengths)) == (left, left)
        assert backlog.shorter(PromptWork(8)) >= 0 and first_token_seconds(costs, backlog, PromptWork(8)) > 0


def test_prompts_are_added_to_a_backlog() -> None:
    assert Backlog(1, 10, 5.0).and_prompts([PromptWork(4), PromptWork(6)]) == Backlog(
        3,
        20,
        5.0 + pairs_of(0, 4) + pairs_of(0, 6),
        shares=(TenantTokens(Owner(), 10),),
        lengths=(0, 0, 0, 10, *[0] * 20),
    )
