"""How memory is divided among groups: texts are held whole, windows as often as there are texts."""

from contracts.kv.spec import KVGroup, KVSpec, blocks_for
from engine.start.block_counts import (
    PoolLoad,
    bytes_of_counts,
    counts_for,
    counts_in,
    longest_in,
    sequences_in,
    tokens_in,
)

BLOCK_TOKENS = 16
TEXTS = PoolLoad(longest=8192, in_flight=512)


def group(layers: int, window: int = 0) -> KVGroup:
    return KVGroup(
        "window" if window else "full", tuple(range(layers)), BLOCK_TOKENS, BLOCK_TOKENS * 64, vectors=2, window=window
    )


def spec(*groups: KVGroup) -> KVSpec:
    return KVSpec(groups, "", "", "bf16")


ONE, MIXED, WINDOWS = spec(group(4)), spec(group(1), group(5, window=512)), spec(group(4, window=512))


def test_one_group_gets_all() -> None:
    one = ONE.block_bytes()
    assert counts_in(ONE, TEXTS, 20 * one + one // 2) == (20,)
    assert counts_in(ONE, TEXTS, 2 * one) == (2,) and counts_in(ONE, TEXTS, 2 * one - 1) is None
    assert counts_in(WINDOWS, TEXTS, 20 * one) == (20,)


def test_no_byte_is_promised_twice_and_little_is_left() -> None:
    for memory in range(2 * MIXED.block_bytes(), 4000 * BLOCK_TOKENS * 64, 77777):
        counts = counts_in(MIXED, TEXTS, memory)
        assert counts is not None and min(counts) >= 2 and counts[1] <= counts[0]
        assert bytes_of_counts(MIXED, counts) <= memory
        more = counts_for(MIXED, TEXTS, tokens_in(MIXED, counts) + BLOCK_TOKENS)
        assert bytes_of_counts(MIXED, more) > memory


def room(counts: tuple[int, ...], length: int) -> float:
    """Returns how many sequences of a length run at once, beside the blocks of steps in flight."""
    window = min(blocks_for(length, BLOCK_TOKENS), MIXED.groups[1].most_blocks(1))
    spare = counts[1] - 1 - blocks_for(TEXTS.in_flight, BLOCK_TOKENS)
    return min((counts[0] - 1) / blocks_for(length, BLOCK_TOKENS), spare / window)


def best(memory: int, length: int) -> float:
    """The same where all memory is divided for texts of this length."""
    window = min(blocks_for(length, BLOCK_TOKENS), MIXED.groups[1].most_blocks(1))
    fixed = bytes_of_counts(MIXED, (1, 1 + blocks_for(TEXTS.in_flight, BLOCK_TOKENS)))
    return (memory - fixed) / bytes_of_counts(MIXED, (blocks_for(length, BLOCK_TOKENS), window))


def test_texts_of_no_length_have_less_than_half_of_the_best_division() -> None:
    memory = 64 << 20
    counts = counts_in(MIXED, TEXTS, memory)
    assert counts is not None
    for length in (1, 16, 100, 528, 1000, 2000, 4000, 8192):
        assert room(counts, length) > 0.49 * best(memory, length), length
    extremes = [room(counts, length) / best(memory, length) for length in (528, 8192)]
    assert abs(extremes[0] - extremes[1]) < 0.02


def test_a_window_does_not_bound_a_text() -> None:
    least = WINDOWS.groups[0].most_blocks(1)
    assert least == 33
    assert (
        longest_in(WINDOWS, TEXTS, (least + 1,)) == 8192 and longest_in(WINDOWS, TEXTS, (least,)) == 32 * BLOCK_TOKENS
    )
    assert longest_in(MIXED, TEXTS, (65, 40)) == 1024 and longest_in(MIXED, TEXTS, (65, 20)) == 19 * BLOCK_TOKENS
    assert longest_in(ONE, TEXTS, (1000,)) == 8192


def test_what_is_said_of_a_pool() -> None:
    assert tokens_in(MIXED, (65, 34)) == 1024 and tokens_in(WINDOWS, (34,)) == 33 * BLOCK_TOKENS
    assert sequences_in(MIXED, TEXTS, (1 + 4 * 512, 1000)) == 4
    assert sequences_in(MIXED, TEXTS, (1 + 4 * 512, 1 + 3 * 33)) == 3
    assert sequences_in(WINDOWS, TEXTS, (1 + 7 * 33,)) == 7
