"""The blocks of one KV group: their references, their KV in the prefix cache, and eviction.

A block is free, used (it has references), or idle: without references, but with KV in the prefix cache. Idle blocks are
available like free ones; the least recently used is evicted first, to a slot of the host tier if there is a host tier.

References are dropped from the last block of a text to the first, so in the order of last use every block precedes its
parent: the evicted block is always a leaf. The same holds for slots.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Literal

from contracts.kv.block_hash import TOKEN_BYTES, BlockKeys, pack
from contracts.kv.spec import blocks_for
from engine.blocks.free_runs import FreeRuns
from engine.blocks.hit import Hit
from engine.blocks.host_slots import HostSlots
from engine.blocks.key_changes import KeyChanges
from engine.blocks.prefix_cache import Node, PrefixCache
from engine.plan import NULL_BLOCK

Emit = Callable[[Literal["copy", "out", "in"], int, int], None]
"""Called with each block move: its kind, its source and its target."""

WorthReturning = Callable[[int], bool]
"""Returns whether bringing this many blocks back from the host tier is cheaper than computing them."""


class BlockPool:
    """The blocks of one KV group, and the slots of its part of the host tier."""

    def __init__(
        self,
        block_count: int,
        block_tokens: int,
        slots: int,
        emit: Emit,
        worth: WorthReturning,
        changes: KeyChanges | None = None,
    ) -> None:
        """All blocks and slots are free at first. `emit` is called for each required move of a block's bytes.

        `changes` records the keys that enter and leave the cache.
        """
        self.block_tokens = block_tokens
        self.total = block_count - 1  # blocks, without the null block
        self.cache = PrefixCache(changes)
        self.evicted = 0  # blocks evicted, to the host tier or for good
        self.copied = 0  # blocks copied on write
        self.returned = 0  # blocks that came back from the host tier
        self.spilled = 0  # blocks that went to the host tier
        self.pinned = 0  # blocks with I/O references
        self.quarantined = 0  # blocks with I/O references and no others
        self._emit = emit
        self._worth = worth
        self._free = FreeRuns(NULL_BLOCK + 1, self.total)
        self._sequence_references = [0] * block_count
        self._io_references = [0] * block_count
        self._nodes: dict[int, Node] = {}  # by block, if it is in the cache
        self._sources: dict[int, Node] = {}  # by used block, the block that its first tokens were copied from
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._slots = HostSlots(slots)

    @property
    def available(self) -> int:
        return self._free.count + len(self._idle)

    @property
    def room(self) -> int:
        return self.available

    @property
    def used(self) -> int:
        return self.total - self.available

    @property
    def idle(self) -> int:
        return len(self._idle)

    # the prefix cache -----------------------------------------------------------------------------------------------

    def match(
        self, keys: BlockKeys, tokens: Sequence[int], limit: int, step: int, *, whole: bool, settled: bool
    ) -> Hit:
        """Finds cached blocks of the first `limit` of `tokens`; with `whole`, whole blocks only.

        `step` is being planned: its blocks may be shared but not copied, and are ignored with `settled`.
        """
        count = limit // self.block_tokens
        keys.cover(tokens, limit)
        nodes = self.cache.walk(keys, count)
        if settled:
            nodes = list(takewhile(lambda node: node.step < step, nodes))
        partial, part = None, 0
        if not whole:
            start = len(nodes) * self.block_tokens
            rest = pack(tokens[start : min(limit, start + self.block_tokens)])
            partial, part = self.cache.nearest(keys.root, nodes[-1] if nodes else None, rest, step)
        away = next((at for at, node in enumerate(nodes) if node.block is None), len(nodes))
        returning = len(nodes) - away + (partial is not None and partial.block is None)
        if returning and not self._worth(returning):
            return Hit(nodes[:away])
        return Hit(nodes, partial, part)

    def known(self, hit: Hit, tokens: int, sent: int) -> int:
        """Returns the leading blocks that need no registering after `tokens` tokens landed in blocks of `sent`."""
        return hit.whole

    def needed(self, tokens: int) -> int:
        return blocks_for(tokens, self.block_tokens)

    def ever_fits(self, tokens: int) -> bool:
        return self.needed(tokens) <= self.total

    def fits(self, tokens: int, spare: int, hit: Hit) -> bool:
        """Returns whether a table for `tokens` tokens that begins with `hit` fits, leaving `spare` blocks."""
        here = [node.block for node in hit.nodes if node.block is not None]
        room = self.available - sum(block in self._idle for block in here)
        return blocks_for(tokens, self.block_tokens) - len(here) + spare <= room

    # taking ---------------------------------------------------------------------------------------------------------

    def allocate(self, tokens: int, hit: Hit) -> list[int]:
        """Takes a table for `tokens` tokens that begins with `hit`; it must fit.

        The moves that fill its first blocks are emitted. The source of a copy may just have been evicted and now be in
        the table itself, but nothing was written to it: all ancestors of a block in the pool are in the pool too, so
        this table takes no block from the host tier.
        """
        table = [node.block for node in hit.nodes if node.block is not None]
        for block in table:
            self._refer(block)
        away = hit.nodes[len(table) :]
        partial = hit.partial
        for node in (*away, partial):
            if node is not None and node.block is None:
                self._slots.hold(node)  # while blocks are evicted
        source = partial.block if partial is not None else None
        first = len(table)
        self.extend(table, blocks_for(tokens, self.block_tokens) - first)
        if partial is not None:
            target = table[len(hit.nodes)]
            self._sources[target] = partial
            if source is None:
                assert partial.slot is not None
                self._emit("in", partial.slot, target)
                self._slots.keep(partial)
            elif source != target:
                self._emit("copy", source, target)
        for node, block in zip(away, table[first:], strict=False):
            self._return(node, block)
        return table

    def missing(self, table: Sequence[int], tokens: int) -> int:
        return max(0, blocks_for(tokens, self.block_tokens) - len(table))

    def has_room(self, count: int, copies: int) -> bool:
        """Returns whether `count` more blocks may be taken, and `copies` to replace shared blocks."""
        return count + copies <= self.available

    def extend(self, table: list[int], count: int) -> None:
        """Appends `count` blocks, next to the table's last block if possible; they must be available."""
        if count > self._free.count:
            self._evict(count - self._free.count)
        taken = self._free.take(count, table[-1] if table else None)
        for block in taken:
            self._sequence_references[block] = 1
        table += taken

    def share(self, table: Sequence[int]) -> list[int]:
        for block in table:
            self._sequence_references[block] += 1
        return list(table)

    def shared(self, table: Sequence[int], position: int) -> bool:
        place = position // self.block_tokens
        return place < len(table) and self._sequence_references[table[place]] > 1

    def unshare(self, table: list[int], position: int) -> None:
        """Replaces a shared block by the table's own copy (copy-on-write); a block must be available."""
        place = position // self.block_tokens
        own: list[int] = []
        self.extend(own, 1)
        self._emit("copy", table[place], own[0])
        self.drop(table[place : place + 1])
        table[place] = own[0]
        self.copied += 1

    # giving back ----------------------------------------------------------------------------------------------------

    def drop(self, blocks: Sequence[int]) -> None:
        self._release(blocks, self._sequence_references)

    def hold_io(self, blocks: Iterable[int]) -> None:
        """Adds an I/O reference to each block; the caller still holds another reference to it."""
        for block in blocks:
            assert self._sequence_references[block] or self._io_references[block], f"block {block} is free"
            self.pinned += not self._io_references[block]
            self._io_references[block] += 1

    def release_io(self, blocks: Sequence[int]) -> None:
        self._release(blocks, self._io_references)

    # registering in the cache ---------------------------------------------------------------------------------------

    def register(
        self, table: list[int], keys: BlockKeys, done: int, upto: int, step: int, since: int, replace: bool
    ) -> int:
        """Registers that blocks `done` … `upto` - 1 of `table` hold, from `step` on, the text of `keys`.

        Their KV is computed from KV of steps from `since` on. Returns how many leading blocks of the table are
        registered. If another block of the same text is registered, it replaces the table's own with `replace` (no step
        in flight may refer to it), unless a fork or I/O also holds the own block: the fork or I/O would hold the blocks
        after it, but not the registered block that leads to them. Without `replace`, or if a key is that of another
        text, the rest stays unregistered.
        """
        parent = self.cache.root(keys.root) if done == 0 and upto else self._nodes.get(table[done - 1])
        while done < upto and parent is not None:
            own, key, tokens = table[done], keys.keys[done], keys.packed[done]
            node = self.cache.find(key) or self.cache.insert(parent, key, tokens)
            if node.parent is not parent or node.tokens != tokens:
                break  # a collision
            if node.block is None:
                self._slots.leave(node)
                node.block, node.step, node.since = own, step, since
                self._nodes[own] = node
            elif node.block != own:
                if not replace or self._sequence_references[own] > 1 or self._io_references[own]:
                    break
                self._refer(node.block)
                table[done] = node.block
                self.drop([own])
            parent = node
            done += 1
        return done

    def since(self, table: Sequence[int]) -> Iterator[int]:
        """Yields the oldest step from which each registered block of a table was computed."""
        return (self._nodes[block].since for block in table if block in self._nodes)

    def invalidate(self, table: Sequence[int], first: int) -> None:
        """Removes blocks `first`, … of the table from the cache: their KV is wrong.

        Their descendants and the blocks that they were copied from are removed too. Copies of them are not: the copies'
        sequences fail in turn.
        """
        for block in table[first:]:
            for node in (self._sources.get(block), self._nodes.get(block)):
                if node is not None and self.cache.find(node.key) is node:
                    self._forget(node)

    def forget_since(self, since: int) -> None:
        """Removes KV of all steps from `since` on from the cache."""
        for node in [node for node in self.cache if node.step >= since]:
            if self.cache.find(node.key) is node:
                self._forget(node)

    # inside ---------------------------------------------------------------------------------------------------------

    def _refer(self, block: int) -> None:
        self.quarantined -= bool(self._io_references[block] and not self._sequence_references[block])
        self._sequence_references[block] += 1
        self._idle.pop(block, None)

    def _release(self, blocks: Sequence[int], references: list[int]) -> None:
        free = []
        for block in reversed(blocks):
            assert references[block] > 0, f"block {block} is released more often than it was taken"
            references[block] -= 1
            sequences, reads = self._sequence_references[block], self._io_references[block]
            if references is self._io_references:
                self.pinned -= not reads
                self.quarantined -= not reads and not sequences
            else:
                self.quarantined += bool(reads) and not sequences
            if sequences or reads:
                continue
            self._sources.pop(block, None)
            if block in self._nodes:
                self._idle[block] = None
            else:
                free.append(block)
        self._put(free)

    def _put(self, blocks: list[int]) -> None:
        first = count = 0
        for block in sorted(blocks):
            if block != first + count:
                if count:
                    self._free.put(first, count)
                first, count = block, 0
            count += 1
        if count:
            self._free.put(first, count)

    def _evict(self, count: int) -> None:
        blocks = [self._idle.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            node = self._nodes.pop(block)
            node.block = None
            if self._slots.is_full and (oldest := self._slots.oldest()) is not None:
                self._forget(oldest)
            if self._slots.is_full:
                self._forget(node)
            else:
                self._emit("out", block, self._slots.put(node))
                self.spilled += 1
        self._put(blocks)
        self.evicted += count

    def _return(self, node: Node, block: int) -> None:
        assert node.slot is not None
        self._emit("in", node.slot, block)
        self._slots.leave(node)
        node.block = block
        self._nodes[block] = node
        self.returned += 1

    def _forget(self, node: Node) -> None:
        idle = []
        for each in self.cache.remove(node):
            self._slots.leave(each)
            if each.block is not None:
                del self._nodes[each.block]
                if each.block in self._idle:
                    del self._idle[each.block]
                    idle.append(each.block)
                each.block = None
        self._put(idle)

    def _both(self) -> Iterator[tuple[int, int]]:
        return zip(self._sequence_references, self._io_references, strict=True)

    def check_invariants(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless free + idle + used = all, and `tables` are exactly the sequence references."""
        free = [block for first, count in self._free.runs() for block in range(first, first + count)]
        references = [sum(both) for both in self._both()]
        used = [block for block, count in enumerate(references) if count]
        everything = sorted([*free, *self._idle, *used])
        assert NULL_BLOCK not in everything, "the null block was given out"
        assert everything == list(range(1, self.total + 1)), "a block is two of free, idle and used, or none"
        assert len(free) == self._free.count, "the count of free blocks is wrong"
        counted = [not sequences for sequences, reads in self._both() if reads]
        assert (len(counted), sum(counted)) == (self.pinned, self.quarantined), "the count of blocks with I/O is wrong"
        assert min(self._sequence_references + self._io_references) >= 0, "a count of references is negative"
        held = [0] * (self.total + 1)
        for table in tables:
            assert len(frozenset(table)) == len(table), "a block stands twice in one table"
            for block in table:
                held[block] += 1
        assert held == self._sequence_references, "the tables are not the sequence references"
        self._check_cache(references)

    def _check_cache(self, references: list[int]) -> None:
        self.cache.check_invariants()
        assert frozenset(self._idle) <= frozenset(self._nodes), "an idle block that the cache does not know"
        assert not frozenset(self._nodes) & frozenset(
            block for first, count in self._free.runs() for block in range(first, first + count)
        ), "a free block that the cache knows"
        self._slots.check_invariants(node for node in self.cache if node.slot is not None)
        ages = {block: age for age, block in enumerate(self._idle)}
        for node in self.cache:
            assert (node.block is None) != (node.slot is None), "KV in two places, or in none"
            assert len(node.tokens) == self.block_tokens * TOKEN_BYTES
            if node.slot is not None:
                continue
            assert node.block is not None and self._nodes[node.block] is node
            parent = node.parent
            assert parent is not None
            if parent.parent is None:
                continue
            assert parent.block is not None, "a block in the pool behind one in the host tier"
            if references[node.block]:
                assert references[parent.block], "a block in use behind one that may be evicted"
            elif not references[parent.block]:
                assert ages[node.block] < ages[parent.block], "a parent would be evicted before its child"
