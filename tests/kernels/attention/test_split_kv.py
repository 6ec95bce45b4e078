"""Decodes are cut so that programs have about the same to do, and every token is seen once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.attention_parts import MAX_SPLITS, MIN_PART_TOKENS
from kernels.attention.split_kv import NO_SEQUENCE, max_parts, may_split, plan_splits, split_plan_words

PROCESSORS, KV_HEADS = 132, 8  # an H100 and an 8B model
ROOM = max_parts(PROCESSORS, KV_HEADS)


def pieces(lengths: list[int], room: int = ROOM, window: int = 0) -> list[int]:
    """The tokens that each piece sees, in the order of the programs."""
    words = plan_splits(np.array(lengths), room, window)
    assert len(words) == split_plan_words(len(lengths), room)
    owners, starts = words[: len(lengths) + room], words[len(lengths) + room :]
    found = []
    for work, length in enumerate(lengths):
        count = starts[work + 1] - starts[work]
        assert (owners[starts[work] : starts[work + 1]] == work).all() and 1 <= count <= MAX_SPLITS
        seen = min(length, window) if window else length
        found += [len(part) for part in np.array_split(np.arange(seen), count)]
    assert (owners[starts[-1] :] == NO_SEQUENCE).all()
    return found


def busiest(loads: list[int], processors: int) -> int:
    """Tokens of the processor that gets most, if each takes the next piece when it is done."""
    own = [0] * processors
    for load in loads:
        own[own.index(min(own))] += load
    return max(own)


def test_one_long_text_among_short_ones_fills_the_device() -> None:
    """As whole sequences it would keep 8 processors busy with 100,000 tokens each, and 124 with next to nothing."""
    lengths = [300] * 20 + [100_000] + [300] * 19
    programs = [load for load in pieces(lengths) for _ in range(KV_HEADS)]
    ideal = sum(lengths) * KV_HEADS / PROCESSORS
    assert busiest([load for load in lengths for _ in range(KV_HEADS)], PROCESSORS) > 14 * ideal
    assert busiest(programs, PROCESSORS) < 1.2 * ideal
    assert sum(load > 300 for load in programs) > 3 * PROCESSORS


def test_batches_of_one_length_are_cut_where_that_pays() -> None:
    assert len(pieces([32768])) == MAX_SPLITS
    assert len(pieces([4096] * 8)) == 8 * 8
    assert len(pieces([1024] * 256)) == 256
    assert pieces([MIN_PART_TOKENS, 3]) == [MIN_PART_TOKENS, 3]
    assert pieces([0, 0]) == [0, 0], "somebody writes the zeros of null rows"
    assert len(pieces([100_000], window=1024)) == 2, "what no query sees is nobody's work"


def test_what_is_never_cut_needs_no_plan() -> None:
    assert not may_split(MIN_PART_TOKENS, 0) and not may_split(1 << 20, MIN_PART_TOKENS)
    assert may_split(MIN_PART_TOKENS + 1, 0) and may_split(1 << 20, MIN_PART_TOKENS + 1)
    assert max_parts(4, 64) == 1


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=70), st.integers(1, 600), st.sampled_from([0, 600, 4096]))
def test_no_piece_is_larger_than_its_share(lengths: list[int], room: int, window: int) -> None:
    found = pieces(lengths, room, window)
    seen = [min(length, window) if window else length for length in lengths]
    assert sum(found) == sum(seen)
    share = max(MIN_PART_TOKENS, -(-sum(seen) // room))
    assert max(found) <= max(share, -(-max(seen) // MAX_SPLITS))
