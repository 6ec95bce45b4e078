"""Sequences keep their rows, rows have no gaps, and pending tokens are found behind a step of any size."""

import random

import numpy as np
import torch

from engine.backends.triton.graphs.decode_inputs import DecodeRows, put_previous


def test_who_stays_keeps_the_row_unless_it_is_beyond_the_last() -> None:
    chance = random.Random(0)
    rows = DecodeRows()
    here: list[int] = []
    before: dict[int, int] = {}
    for step in range(300):
        left = [each for each in here if chance.random() < 0.1]
        came = [10 * step + number for number in range(chance.randrange(4))]
        here = [each for each in here if each not in left] + came
        chance.shuffle(here)
        found = dict(zip(here, rows.of(here), strict=True))
        assert sorted(found.values()) == list(range(len(here)))
        moved = [each for each in here if each in before and found[each] != before[each]]
        assert all(before[each] >= len(here) for each in moved) and len(moved) <= max(0, len(left) - len(came))
        before = found


def test_the_last_takes_the_place_of_one_that_left() -> None:
    rows = DecodeRows()
    assert rows.of([5, 6, 7, 8]) == [0, 1, 2, 3]
    assert rows.of([5, 7, 8]) == [0, 2, 1]
    assert rows.of([9, 5, 7, 8]) == [3, 0, 2, 1]
    assert rows.of([]) == []


def test_pending_tokens_of_a_step_with_more_tokens_than_rows_are_gathered() -> None:
    """A step that verifies draft tokens may sample more tokens than the next step has rows."""
    for sampled in (3, 4, 9):
        room, tokens, rows = torch.zeros(4, dtype=torch.int64), torch.arange(100, 100 + sampled), np.array([2, 0])
        found = put_previous(room, tokens, rows)
        assert room[found].tolist() == [102, 100]
