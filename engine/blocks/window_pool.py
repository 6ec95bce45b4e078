"""The blocks of a KV group with a sliding window: a sequence holds only the blocks of its window.

A sequence's table has an entry for each block of its text; entries before the window are the null block. As the
sequence advances, the first blocks of the window are freed (idle if they are cached) and as many are taken after the
last. To ensure that a prompt in progress always gets its next block, it starts with the blocks of the window and of a
part of a step, and a block that several sequences hold counts once for each: each can free what it took. More blocks
are taken if there is room.

A prefix is found without the blocks before its window: a block's key stands for all tokens before it, and only its own
tokens are compared. Blocks that were found, and ends of texts, are kept longest. Blocks outside all windows that were
never found are evicted first; otherwise one long text would evict the windows of all others.
"""

from collections.abc import Iterable, Sequence

from contracts.kv.block_hash import BlockKeys, pack
from contracts.kv.spec import KVGroup, blocks_for
from engine.blocks.hit import Hit
from engine.blocks.key_changes import KeyChanges
from engine.blocks.pool import BlockPool, Emit
from engine.blocks.prefix_cache import Node
from engine.plan import NULL_BLOCK

BEGINNING_DIVISOR = 4
"""A prompt starts if its window plus 1 / BEGINNING_DIVISOR of the maximum tokens in flight fit."""


class WindowPool(BlockPool):
    """The blocks of one KV group with a window, without a host tier.

    In its cache every block's parent is its own root, named by the key of the text before the block.
    """

    def __init__(
        self, group: KVGroup, block_count: int, ahead: int, emit: Emit, changes: KeyChanges | None = None
    ) -> None:
        """All blocks are free at first. `ahead`: maximum tokens of one sequence that steps in flight compute."""
        super().__init__(block_count, group.block_tokens, 0, emit, lambda blocks: False, changes)
        self._group = group
        self._least = group.most_blocks(1)
        bound = max(self.total, self._least)
        # blocks that a sequence starts with, and its maximum
        self._begin = min(group.most_blocks(max(1, ahead // BEGINNING_DIVISOR)), bound)
        self._most = min(group.most_blocks(ahead), bound)
        self._held = 0  # references of sequences, over all blocks
        self._found: set[Node] = set()  # nodes that a later sequence has used

    @property
    def room(self) -> int:
        """Blocks that may be taken; negative if samples share blocks of which each will need its own copy."""
        return self.total - self._held - self.quarantined

    # finding cached blocks ------------------------------------------------------------------------------------------

    def match(
        self, keys: BlockKeys, tokens: Sequence[int], limit: int, step: int, *, whole: bool, settled: bool
    ) -> Hit:
        """Finds the leading whole blocks in the window of the query at `limit` that need not land.

        `step` and `settled` are as in `BlockPool.match`.
        """
        assert whole, "cached prefixes for computing are found by `reach` and `hit`"
        keys.cover(tokens, limit)
        first = at = self._group.first_needed(limit)
        nodes = []
        while at < limit // self.block_tokens and (node := self._known(keys, at, step, settled)) is not None:
            nodes.append(node)
            at += 1
        return Hit(nodes, first=first)

    def reach(self, keys: BlockKeys, tokens: Sequence[int], limit: int, step: int, settled: bool) -> int:
        """Returns the longest prefix of the first `limit` of `tokens` whose window for the next query is cached.

        `keys` cover them. A shorter prefix need not be cached: its query sees earlier blocks.
        """
        end = min(limit // self.block_tokens, len(keys.keys))
        while True:
            _, part = self._behind(keys, tokens, end, limit, step)
            reached = end * self.block_tokens + part
            first, at = self._group.first_needed(reached), end
            while at > first and self._known(keys, at - 1, step, settled) is not None:
                at -= 1
            if at <= first:
                return reached
            end = at - 1

    def hit(self, keys: BlockKeys, tokens: Sequence[int], count: int, step: int) -> Hit:
        """Returns the cached blocks of the first `count` of `tokens`, a number that `reach` returned."""
        whole = count // self.block_tokens
        first = self._group.first_needed(count)
        nodes = [node for at in range(first, whole) if (node := self._known(keys, at, step, False)) is not None]
        partial, part = self._behind(keys, tokens, whole, count, step)
        assert first + len(nodes) == whole and part == count % self.block_tokens
        return Hit(nodes, partial, part, first)

    def known(self, hit: Hit, tokens: int, sent: int) -> int:
        """Returns the leading blocks that need not be registered once the others have landed.

        Landing blocks have `sent` tokens: the window's first block here may lack tokens that no query sees.
        """
        whole = (
            bool(hit.nodes) or max(0, tokens - self._group.window + 1) // sent * sent <= hit.first * self.block_tokens
        )
        return hit.whole if whole else hit.whole + 1

    def _known(self, keys: BlockKeys, at: int, step: int, settled: bool) -> Node | None:
        node = self.cache.find(keys.keys[at])
        if node is None or node.tokens != keys.packed[at] or (settled and node.step >= step):
            return None
        return node

    def _behind(
        self, keys: BlockKeys, tokens: Sequence[int], at: int, limit: int, step: int
    ) -> tuple[Node | None, int]:
        start = at * self.block_tokens
        rest = pack(tokens[start : min(limit, start + self.block_tokens)])
        return self.cache.nearest(keys.keys[at - 1] if at else keys.root, None, rest, step)

    # taking ---------------------------------------------------------------------------------------------------------

    def needed(self, tokens: int, first: int = 0) -> int:
        """Returns the maximum blocks that a sequence with `tokens` tokens holds, from block `first` on."""
        return min(blocks_for(tokens, self.block_tokens) - first, self._most)

    def ever_fits(self, tokens: int) -> bool:
        return min(blocks_for(tokens, self.block_tokens), self._least) <= self.total

    def fits(self, tokens: int, spare: int, hit: Hit) -> bool:
        behind = blocks_for(tokens, self.block_tokens) - hit.first
        return min(behind, self._begin) + spare <= self.room

    def _wanted(self, tokens: int, first: int, held: int) -> int:
        """Returns the blocks to take for a sequence that holds `held` from block `first` on; below 1: none.

        Half of the room is left to others, unless the sequence would have less than its initial blocks.
        """
        behind = blocks_for(tokens, self.block_tokens) - first
        return max(min(behind, self._begin) - held, min(behind - held, self._most - held, self.room // 2))

    def allocate(self, tokens: int, hit: Hit) -> list[int]:
        """Takes a table that begins with `hit`, with blocks for the next of `tokens` tokens; it must fit.

        `advance` takes further blocks.
        """
        count = self._wanted(tokens, hit.first, 0)
        table = [NULL_BLOCK] * hit.first
        for node in hit.nodes:
            assert node.block is not None
            self._found.add(node)
            self._refer(node.block)
            table.append(node.block)
        source = hit.partial.block if hit.partial is not None else None
        self.extend(table, count - len(hit.nodes))
        if source is not None and source != table[hit.whole]:
            self._emit("copy", source, table[hit.whole])
        return table

    def advance(self, table: list[int], position: int, tokens: int) -> int:
        """Frees blocks that no query from `position` on sees, and takes blocks for more of `tokens`.

        Returns the position at which to call again; `position` itself if blocks were short.
        """
        first = min(self._group.first_needed(position), len(table))
        at = first
        while at and table[at - 1] != NULL_BLOCK:
            at -= 1
        if at < first:
            left, table[at:first] = table[at:first], [NULL_BLOCK] * (first - at)
            self.drop(left)
            for block in left:
                if block in self._idle and self._nodes[block] not in self._found:
                    self._idle.move_to_end(block, last=False)
        held = len(table) - first
        taken = max(0, min(self._wanted(tokens, first, held), self.room))
        self.extend(table, taken)
        if held + taken < self.needed(tokens, first):
            return position
        return (first + 1) * self.block_tokens + self._group.window - 1

    def has_room(self, count: int, copies: int) -> bool:
        """Returns whether `count` more blocks may be taken; a copy replaces a block that is counted already."""
        return count <= self.room

    def extend(self, table: list[int], count: int) -> None:
        super().extend(table, count)
        self._held += count

    def share(self, table: Sequence[int]) -> list[int]:
        """Returns a table of the same blocks for another sequence. They count twice: each will need its own."""
        taken = _taken(table)
        super().share(taken)
        self._held += len(taken)
        return list(table)

    # giving back ----------------------------------------------------------------------------------------------------

    def drop(self, blocks: Sequence[int]) -> None:
        taken = _taken(blocks)
        self._held -= len(taken)
        super().drop(taken)

    # registering in the cache ---------------------------------------------------------------------------------------

    def register(
        self, table: list[int], keys: BlockKeys, done: int, upto: int, step: int, since: int, replace: bool
    ) -> int:
        """Registers that blocks `done` … `upto` - 1 of `table` hold, from `step` on, the text of `keys`.

        Their KV is computed from KV of steps from `since` on. A registered text keeps its block. Returns `upto`.
        """
        for at in range(done, upto):
            block, key = table[at], keys.keys[at]
            if block == NULL_BLOCK or block in self._nodes or self.cache.find(key) is not None:
                continue
            before = self.cache.root(keys.keys[at - 1] if at else keys.root)
            node = self._nodes[block] = self.cache.insert(before, key, keys.packed[at])
            node.block, node.step, node.since = block, step, since
        return max(done, upto)

    # inside ---------------------------------------------------------------------------------------------------------

    def _forget(self, node: Node) -> None:
        self._found.discard(node)
        super()._forget(node)

    def _refer(self, block: int) -> None:
        super()._refer(block)
        self._held += 1

    def check_invariants(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError as other pools do, and for a null block inside a window."""
        held = []
        for table in tables:
            held.append(_taken(table))
            assert NULL_BLOCK not in table[len(table) - len(held[-1]) :], "a window with a hole"
        super().check_invariants(held)
        assert self._found <= set(self.cache)
        assert self._held == sum(self._sequence_references), "the count of sequences' references is wrong"


def _taken(table: Sequence[int]) -> list[int]:
    return [block for block in table if block != NULL_BLOCK]
