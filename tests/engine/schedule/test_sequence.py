"""Sequence: its table of moves, its counts, and how it ends."""

from itertools import product

import pytest

from contracts.errors import IllegalMove, MessageError
from contracts.ids import AttemptKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits
from engine.schedule.sequence import Sequence, SequenceState

B, W, L, R, P, E = SequenceState
LEGAL = {(B, R), (B, E), (W, R), (W, L), (W, E), (L, R), (L, E), (R, W), (R, P), (R, E), (P, E)}


def sequence(tokens: list[int], prompt_tokens: int, **more: object) -> Sequence:
    built = Sequence(AttemptKey("r-1", 0, 1), "gateway", Prompt(tokens, prompt_tokens), deadline=9.0)
    for name, value in more.items():
        setattr(built, name, value)
    return built


@pytest.mark.parametrize(("before", "after"), list(product(SequenceState, SequenceState)))
def test_a_move_is_in_the_table_or_raises(before: SequenceState, after: SequenceState) -> None:
    moved = sequence([1], 1, state=before)
    if (before, after) in LEGAL:
        moved.move(after)
        assert moved.state is after
    else:
        with pytest.raises(IllegalMove, match=f"r-1: {before.value} -> {after.value}"):
            moved.move(after)
        assert moved.state is before


def test_length_counts_tokens_that_are_still_being_sampled() -> None:
    assert sequence([5, 6, 7], 2, pending=1).length == 4


@pytest.mark.parametrize(("tokens", "prompt"), [([], 0), ([1], 0), ([1], 2), ([1], -1)])
def test_a_prompt_that_is_not_in_the_tokens_is_refused(tokens: list[int], prompt: int) -> None:
    with pytest.raises(MessageError, match=f"prompt of {prompt} tokens in {len(tokens)} token ids"):
        sequence(tokens, prompt)


def test_a_stop_token_ends_before_the_length_does() -> None:
    ending = sequence([1], 1, limits=Limits(max_tokens=3, stop_token_ids=(7, 8)), end_length=4)
    room = ending.end_length - len(ending.tokens)
    assert ending.until_end([9, 8, 9]) == ([9, 8], "stop")
    assert ending.until_end([9] * (room + 2)) == ([9] * room, "length")
    assert ending.until_end([9] * (room - 1) + [8]) == ([9] * (room - 1) + [8], "stop")
    assert ending.until_end([9] * (room - 1)) == ([9] * (room - 1), None)
