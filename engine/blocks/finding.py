"""Finds the cached prefix of a text: the longest prefix whose needed KV is in every KV group.

A group without a window needs all tokens. A group with a window needs only the tokens that the next query sees, so a
prefix may be found although its first blocks were evicted long ago.
"""

from collections.abc import Sequence
from typing import NamedTuple

from contracts.kv.block_hash import BlockKeys
from engine.blocks.hit import Hit
from engine.blocks.pool import BlockPool
from engine.blocks.window_pool import WindowPool


class FoundPrefix(NamedTuple):
    """The cached prefix of a text."""

    tokens: int  # leading tokens whose KV is cached, or not needed, in every group
    hits: tuple[Hit, ...]  # by group

    @property
    def returning(self) -> int:
        """Blocks to bring back from the host tier."""
        return sum(node.block is None for hit in self.hits for node in hit.nodes)

    def since(self, step: int) -> int:
        """Returns the oldest step in which this KV was computed, at most `step`."""
        nodes = [node for hit in self.hits for node in (*hit.nodes, hit.partial) if node is not None]
        return min([step, *(node.since for node in nodes)])

    @property
    def partial(self) -> bool:
        """Whether the prefix ends inside a block, which is then copied."""
        return any(hit.partial is not None for hit in self.hits)

    @property
    def held(self) -> tuple[int, ...]:
        """By group, the leading blocks that are cached whole, or not needed."""
        return tuple([hit.whole for hit in self.hits])

    @property
    def whole_blocks(self) -> int:
        return min(self.held)


def find_whole(
    pools: Sequence[BlockPool], tokens: Sequence[int], chains: Sequence[BlockKeys], limit: int, step: int
) -> FoundPrefix:
    """Finds in each group by itself the whole blocks among the first `limit` of `tokens` that need not land."""
    settled = _settled(pools)
    hits = tuple(
        [
            pool.match(keys, tokens, limit, step, whole=True, settled=settled)
            for pool, keys in zip(pools, chains, strict=True)
        ]
    )
    found = min([hit.tokens(pool.block_tokens) for pool, hit in zip(pools, hits, strict=True)])
    return FoundPrefix(found if any([hit.nodes for hit in hits]) else 0, hits)


def find(
    pools: Sequence[BlockPool], tokens: Sequence[int], chains: Sequence[BlockKeys], limit: int, step: int
) -> FoundPrefix:
    """Finds the prefix among the first `limit` of `tokens` that need not be computed."""
    if len(pools) == 1 and not isinstance(pools[0], WindowPool):
        hit = pools[0].match(chains[0], tokens, limit, step, whole=False, settled=False)
        return FoundPrefix(hit.tokens(pools[0].block_tokens), (hit,))
    settled = _settled(pools)
    windows = {at: pool for at, pool in enumerate(pools) if isinstance(pool, WindowPool)}
    hits: dict[int, Hit] = {}
    for at, pool in enumerate(pools):
        if at in windows:
            chains[at].cover(tokens, limit)
        else:
            hits[at] = pool.match(chains[at], tokens, limit, step, whole=False, settled=settled)
    found = min([limit, *(hit.tokens(pools[at].block_tokens) for at, hit in hits.items())])
    before = None
    while found != before:
        before = found
        for at, window in windows.items():
            found = window.reach(chains[at], tokens, found, step, settled)
        for at, hit in hits.items():
            partial = hit.cut(found, pools[at].block_tokens).partial
            if partial is not None and partial.step >= step:
                found -= found % pools[at].block_tokens  # KV that this step computes may be shared, but not copied
    for at, hit in hits.items():
        hits[at] = hit.cut(found, pools[at].block_tokens)
    for at, window in windows.items():
        hits[at] = window.hit(chains[at], tokens, found, step)
    return FoundPrefix(found, tuple([hits[at] for at in range(len(pools))]))


def _settled(pools: Sequence[BlockPool]) -> bool:
    """Returns whether to ignore blocks of the step being planned: with several block sizes, a block might be cut."""
    return len({pool.block_tokens for pool in pools}) > 1
