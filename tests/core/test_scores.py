"""Scores keep their numbers when they are packed, parted and joined."""

import numpy as np
import pytest

from core.scores import Scores


def scores(tokens: int, top: int) -> Scores:
    draw = np.random.default_rng(tokens * 31 + top)
    return Scores.of(
        draw.normal(size=tokens).astype(np.float32),
        draw.integers(1, 1000, tokens).astype(np.int32),
        draw.integers(0, 1 << 17, (tokens, top)).astype(np.int32),
        draw.normal(size=(tokens, top)).astype(np.float32),
    )


@pytest.mark.parametrize("top", [0, 1, 5])
def test_parts_that_are_joined_are_the_whole(top: int) -> None:
    whole = scores(7, top)
    assert len(whole) == 7
    for cut in range(8):
        parts = [whole.part(0, cut), whole.part(cut, 7)]
        assert [len(part) for part in parts] == [cut, 7 - cut]
        assert Scores.joined(parts) == whole
    assert list(whole)[3] == next(iter(whole.part(3, 4)))


def test_numbers_come_out_as_they_went_in() -> None:
    ids, tops = np.array([[3, 4]], np.int32), np.array([[-0.25, -1.5]], np.float32)
    packed = Scores.of(np.array([-1.5], np.float32), np.array([2], np.int32), ids, tops)
    assert list(packed) == [(-1.5, 2, [(3, -0.25), (4, -1.5)])]
