"""Finds how much of a text is here: the longest beginning that every KV group has, as far as it is needed.

A group that keeps all tokens has to have all of them. Of a group with a window only those count that the next query
sees, so a text may be here although its first blocks were given up long ago.
"""

from collections.abc import Sequence
from typing import NamedTuple

from contracts.kv.block_hash import BlockKeys
from engine.blocks.pool import BlockPool, Hit
from engine.blocks.window_pool import WindowPool


class FoundPrefix(NamedTuple):
    """Says what the cache has of a text."""

    tokens: int  # the text's first tokens whose KV is here, or not needed, in every group
    hits: tuple[Hit, ...]  # what each group has

    @property
    def returning(self) -> int:
        """Counts the blocks of it that come back from the host tier."""
        return sum(node.block is None for hit in self.hits for node in hit.nodes)

    def since(self, step: int) -> int:
        """Returns the oldest step of what a sequence that begins with this is computed from; `step`: its own first."""
        nodes = [node for hit in self.hits for node in (*hit.nodes, hit.partial) if node is not None]
        return min([step, *(node.since for node in nodes)])

    @property
    def partial(self) -> bool:
        """Says whether it ends inside a block, which is copied."""
        return any(hit.partial is not None for hit in self.hits)

    @property
    def held(self) -> tuple[int, ...]:
        """Counts, for each group, the leading blocks that are here as a whole, or not needed."""
        return tuple([hit.whole for hit in self.hits])

    @property
    def whole_blocks(self) -> int:
        """Counts the leading blocks that are here as a whole, or not needed, in every group."""
        return min(self.held)


def find_whole(
    pools: Sequence[BlockPool], tokens: Sequence[int], chains: Sequence[BlockKeys], limit: int, step: int
) -> FoundPrefix:
    """Finds what need not land of the first `limit` of `tokens`: each group has the whole blocks that it has."""
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
    """Finds what need not be computed of the first `limit` of `tokens`."""
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
                found -= found % pools[at].block_tokens  # what this step computes may be shared, but not copied
    for at, hit in hits.items():
        hits[at] = hit.cut(found, pools[at].block_tokens)
    for at, window in windows.items():
        hits[at] = window.hit(chains[at], tokens, found, step)
    return FoundPrefix(found, tuple([hits[at] for at in range(len(pools))]))


def _settled(pools: Sequence[BlockPool]) -> bool:
    """Tells whether blocks of the step that is being planned do not count: where sizes differ, one may be cut."""
    return len({pool.block_tokens for pool in pools}) > 1
