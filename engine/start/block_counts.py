"""Decides how many blocks each KV group has: bytes to counts, and counts to texts. Counts include the null block.

Groups without a window hold texts, whole; a group with a window needs the tokens that a query sees of each text, and
those of the steps under way. All of them are to be used up by the same texts, so a group with a window has blocks for
the steps under way, and for the window of each text of a typical length that the others hold; but never more than they.
Where every group has a window, those of the widest hold texts.

Which length is typical nobody knows. One that is too short wastes blocks of windows when texts are long, one that is
too long wastes the others' when texts are short. With windows of w tokens that cost as much as c tokens do in the other
groups, both extremes (texts of w, and of the greatest length L) lose the same at

    (w + c) / (1 + c / L)

and then texts of no length have less than half of the room that the best division for them would give.
"""

from collections.abc import Callable
from math import ceil

from msgspec import Struct

from contracts.kv.spec import KVGroup, KVSpec, blocks_for

Counts = tuple[int, ...]


class Texts(Struct, frozen=True):
    """Says what texts a pool is for."""

    longest: int  # tokens of the longest
    under_way: int  # tokens of all steps that are launched and not yet collected, at most

    def of_window(self, group: KVGroup) -> int:
        """Returns the blocks that a text has in a group with a window, beside those of steps under way."""
        return min(blocks_for(self.longest, group.block_tokens), group.most_blocks(1))

    def typical(self, spec: KVSpec) -> float:
        """Returns the tokens of a typical text: see the head of this file."""
        window, others, windows = 0, 0.0, 0.0
        for group, whole in zip(spec.groups, holds_texts(spec), strict=True):
            token_bytes = group.layers_bytes() / group.block_tokens
            if whole:
                others += token_bytes
            else:
                tokens = self.of_window(group) * group.block_tokens
                window, windows = max(window, tokens), windows + tokens * token_bytes
        cost = windows / others
        return (window + cost) / (1 + cost / self.longest)


def holds_texts(spec: KVSpec) -> list[bool]:
    """Tells of each group whether it is one of those that hold texts whole."""
    if all(group.window for group in spec.groups):
        widest = max(group.window for group in spec.groups)
        return [group.window == widest for group in spec.groups]
    return [not group.window for group in spec.groups]


def counts_for(spec: KVSpec, texts: Texts, tokens: int) -> Counts:
    """Returns the blocks of each group of a pool for `tokens` tokens of such texts."""

    def count(group: KVGroup, *, whole: bool) -> int:
        blocks = blocks_for(tokens, group.block_tokens)
        if whole:
            return 1 + blocks
        many = ceil(tokens / texts.typical(spec))
        return 1 + min(blocks, blocks_for(texts.under_way, group.block_tokens) + many * texts.of_window(group))

    return tuple(count(group, whole=whole) for group, whole in zip(spec.groups, holds_texts(spec), strict=True))


def bytes_of_counts(spec: KVSpec, counts: Counts) -> int:
    """Returns the bytes of a pool."""
    return sum(count * group.layers_bytes() for group, count in zip(spec.groups, counts, strict=True))


def counts_in(spec: KVSpec, texts: Texts, memory: int) -> Counts | None:
    """Returns the blocks of the largest pool in `memory` bytes; None where not one block of each group fits."""
    block = spec.groups[0].block_tokens

    def fits(blocks: int) -> bool:
        return bytes_of_counts(spec, counts_for(spec, texts, blocks * block)) <= memory

    blocks = _largest(fits, memory // min(group.layers_bytes() for group in spec.groups))
    return counts_for(spec, texts, blocks * block) if blocks else None


def tokens_in(spec: KVSpec, counts: Counts) -> int:
    """Returns the tokens of texts that a pool holds whole."""
    pools = zip(spec.groups, counts, holds_texts(spec), strict=True)
    return min((count - 1) * group.block_tokens for group, count, whole in pools if whole)


def longest_in(spec: KVSpec, texts: Texts, counts: Counts) -> int:
    """Returns the tokens of the longest of such texts that a pool has room for: a text needs no more than windows."""
    rooms = (
        (count - 1) * group.block_tokens
        for group, count in zip(spec.groups, counts, strict=True)
        if not group.window or count <= group.most_blocks(1)
    )
    return min([texts.longest, *rooms])


def sequences_in(spec: KVSpec, texts: Texts, counts: Counts) -> int:
    """Returns how many texts of the greatest length a pool holds at a time."""
    return min(
        (count - 1) // (texts.of_window(group) if group.window else blocks_for(texts.longest, group.block_tokens))
        for group, count in zip(spec.groups, counts, strict=True)
    )


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """Returns the largest number up to `most` that fits, as do all below it; 0 where none does."""
    least = 0
    while least < most:
        half = (least + most + 1) // 2
        least, most = (half, most) if fits(half) else (least, half - 1)
    return least
