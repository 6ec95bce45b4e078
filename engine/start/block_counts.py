"""Divides the KV pool's memory among KV groups: bytes to blocks of each group, and blocks to sequences.

Counts include the null block of each group. A group without a window stores full sequences. A group with a window needs
only the tokens in the window of each sequence, and the tokens of the steps in flight. If every group has a window, the
groups with the widest window are treated like groups that store full sequences.

Both kinds should run out of blocks at the same time, so windowed groups get the blocks of the steps in flight, plus a
window for each sequence of typical length that the other groups can store (and never more blocks than these). The
typical length is unknown: if it is assumed too short, blocks of windows stay unused; if too long, blocks of the other
groups do. With a window of w tokens, whose KV costs as much as that of c tokens in the other groups, and a maximum
length L, both extremes (all sequences of w tokens, all of L tokens) waste the same share of memory at

    typical length = (w + c) / (1 + c / L)

At any length the capacity is then at least half of the capacity with the best division for that length.
"""

from collections.abc import Callable
from math import ceil

from msgspec import Struct

from contracts.kv.spec import KVGroup, KVSpec, blocks_for

Counts = tuple[int, ...]


class PoolLoad(Struct, frozen=True):
    """The sequences that a pool is sized for."""

    longest: int  # maximum tokens of a sequence
    in_flight: int  # maximum tokens of all steps that are launched and not yet collected

    def blocks_in_window(self, group: KVGroup) -> int:
        """Returns the blocks of a sequence in a windowed group, without blocks of steps in flight."""
        return min(blocks_for(self.longest, group.block_tokens), group.most_blocks(1))

    def typical_length(self, spec: KVSpec) -> float:
        """Returns the typical length in tokens, by the formula above."""
        window, others, windows = 0, 0.0, 0.0
        for group, full in zip(spec.groups, stores_full_sequences(spec), strict=True):
            token_bytes = group.layers_bytes() / group.block_tokens
            if full:
                others += token_bytes
            else:
                tokens = self.blocks_in_window(group) * group.block_tokens
                window, windows = max(window, tokens), windows + tokens * token_bytes
        cost = windows / others
        return (window + cost) / (1 + cost / self.longest)


def stores_full_sequences(spec: KVSpec) -> list[bool]:
    """Returns for each KV group whether it stores full sequences (no window, or the widest)."""
    if all(group.window for group in spec.groups):
        widest = max(group.window for group in spec.groups)
        return [group.window == widest for group in spec.groups]
    return [not group.window for group in spec.groups]


def counts_for(spec: KVSpec, load: PoolLoad, tokens: int) -> Counts:
    """Returns the blocks of each group for sequences that have `tokens` tokens together."""

    def count(group: KVGroup, *, full: bool) -> int:
        blocks = blocks_for(tokens, group.block_tokens)
        if full:
            return 1 + blocks
        sequences = ceil(tokens / load.typical_length(spec))
        return 1 + min(
            blocks, blocks_for(load.in_flight, group.block_tokens) + sequences * load.blocks_in_window(group)
        )

    return tuple(count(group, full=full) for group, full in zip(spec.groups, stores_full_sequences(spec), strict=True))


def bytes_of_counts(spec: KVSpec, counts: Counts) -> int:
    return sum(count * group.layers_bytes() for group, count in zip(spec.groups, counts, strict=True))


def counts_in(spec: KVSpec, load: PoolLoad, memory: int) -> Counts | None:
    """Returns the counts of the largest pool in `memory` bytes; None if not even one block of each group fits."""
    block = spec.groups[0].block_tokens

    def fits(blocks: int) -> bool:
        return bytes_of_counts(spec, counts_for(spec, load, blocks * block)) <= memory

    blocks = _largest(fits, memory // min(group.layers_bytes() for group in spec.groups))
    return counts_for(spec, load, blocks * block) if blocks else None


def tokens_in(spec: KVSpec, counts: Counts) -> int:
    pools = zip(spec.groups, counts, stores_full_sequences(spec), strict=True)
    return min((count - 1) * group.block_tokens for group, count, full in pools if full)


def longest_in(spec: KVSpec, load: PoolLoad, counts: Counts) -> int:
    """Returns the length, at most `load.longest`, of the longest sequence that a pool can store."""
    capacities = (
        (count - 1) * group.block_tokens
        for group, count in zip(spec.groups, counts, strict=True)
        if not group.window or count <= group.most_blocks(1)
    )
    return min([load.longest, *capacities])


def sequences_in(spec: KVSpec, load: PoolLoad, counts: Counts) -> int:
    """Returns how many sequences of maximum length a pool can store at the same time."""
    return min(
        (count - 1) // (load.blocks_in_window(group) if group.window else blocks_for(load.longest, group.block_tokens))
        for group, count in zip(spec.groups, counts, strict=True)
    )


def _largest(fits: Callable[[int], bool], upper: int) -> int:
    """Returns the largest number up to `upper` that fits, by bisection; 0 if none does."""
    lower = 0
    while lower < upper:
        half = (lower + upper + 1) // 2
        lower, upper = (half, upper) if fits(half) else (lower, half - 1)
    return lower
