"""Who holds which KV block. Blocks are numbers here; the bytes are in the KV pool.

A block has sequence references and I/O references (a frame that zmq still reads, bytes that still land), and is free
when both are zero. Block 0 is the null block, which padding reads and writes: it is never given out.
"""

from collections.abc import Iterable, Sequence

from core.errors import CapacityError
from core.kvspec import KVSpec, blocks_for
from engine.free_runs import FreeRuns

NULL_BLOCK = 0

Tables = tuple[list[int], ...]
"""The blocks of one sequence, in order of position, for each KV group."""


class BlockPool:
    """The blocks of one KV group."""

    def __init__(self, block_count: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.total = block_count - 1
        self._free = FreeRuns(NULL_BLOCK + 1, self.total)
        self._sequence_references = [0] * block_count
        self._io_references = [0] * block_count

    @property
    def free_count(self) -> int:
        """Blocks that nobody holds."""
        return self._free.count

    def missing(self, table: Sequence[int], tokens: int) -> int:
        """Blocks that `table` lacks to hold `tokens` tokens."""
        return max(0, blocks_for(tokens, self.block_tokens) - len(table))

    def extend(self, table: list[int], count: int) -> None:
        """Appends `count` free blocks, next to the table's last block where that is free."""
        taken = self._free.take(count, table[-1] if table else None)
        for block in taken:
            self._sequence_references[block] = 1
        table += taken

    def drop(self, blocks: Iterable[int]) -> None:
        """Ends one sequence reference of each block."""
        self._release(blocks, self._sequence_references)

    def hold_io(self, blocks: Iterable[int]) -> None:
        """Begins one I/O reference of each block; the caller still holds another reference of it."""
        for block in blocks:
            assert self._sequence_references[block] or self._io_references[block], f"block {block} is free"
            self._io_references[block] += 1

    def release_io(self, blocks: Iterable[int]) -> None:
        """Ends one I/O reference of each block."""
        self._release(blocks, self._io_references)

    def _release(self, blocks: Iterable[int], references: list[int]) -> None:
        first = count = 0  # neighbours go back together
        for block in blocks:
            assert references[block] > 0, f"block {block} is released more often than it was taken"
            references[block] -= 1
            if self._sequence_references[block] or self._io_references[block]:
                continue
            if block != first + count:
                if count:
                    self._free.put(first, count)
                first, count = block, 0
            count += 1
        if count:
            self._free.put(first, count)

    def check_invariants(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless free + used = all, and `tables` are exactly the sequence references."""
        free = [block for first, count in self._free.runs() for block in range(first, first + count)]
        used = [
            block for block in range(self.total + 1) if self._sequence_references[block] or self._io_references[block]
        ]
        assert NULL_BLOCK not in free and NULL_BLOCK not in used, "the null block was given out"
        assert sorted(free + used) == list(range(1, self.total + 1)), "a block is free and used, or neither"
        assert len(free) == self._free.count, "the count of free blocks is wrong"
        assert min(self._sequence_references + self._io_references) >= 0, "a count of references is negative"
        held = [0] * (self.total + 1)
        for table in tables:
            assert len(frozenset(table)) == len(table), "a block stands twice in one table"
            for block in table:
                held[block] += 1
        assert held == self._sequence_references, "the tables are not the sequence references"


class BlockManager:
    """The blocks of all KV groups; whatever is taken is taken in every group, or in none."""

    def __init__(self, spec: KVSpec, block_count: int) -> None:
        """`block_count` counts the null block, in every group. Raises `CapacityError` where nothing is left."""
        if block_count < 2:
            raise CapacityError(f"a KV pool of {block_count} blocks: 2 are the least, because block 0 pads")
        self.groups = tuple(BlockPool(block_count, group.block_tokens) for group in spec.groups)
        self.total = sum(group.total for group in self.groups)

    @property
    def free_count(self) -> int:
        """Blocks that nobody holds, over all groups."""
        return sum(group.free_count for group in self.groups)

    @property
    def used_count(self) -> int:
        """Blocks with any reference, over all groups."""
        return self.total - self.free_count

    def needed(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens, over all groups."""
        return sum(blocks_for(tokens, group.block_tokens) for group in self.groups)

    def ever_fits(self, tokens: int) -> bool:
        """Whether the empty pool has room for `tokens` tokens of one sequence."""
        return all(group.missing((), tokens) <= group.total for group in self.groups)

    def fits(self, tokens: int, spare: int) -> bool:
        """Whether `tokens` tokens fit now, and leave `spare` blocks free in every group."""
        return all(group.missing((), tokens) + spare <= group.free_count for group in self.groups)

    def allocate(self, tokens: int) -> Tables | None:
        """New tables with room for `tokens` tokens, or None: not enough blocks are free."""
        tables: Tables = tuple([] for _ in self.groups)
        return tables if self.grow(tables, tokens) else None

    def grow(self, tables: Tables, tokens: int) -> bool:
        """Extends `tables` in place until they hold `tokens` tokens; False, and nothing done: not enough are free."""
        missing = [group.missing(table, tokens) for group, table in zip(self.groups, tables, strict=True)]
        if any(count > group.free_count for group, count in zip(self.groups, missing, strict=True)):
            return False
        for group, table, count in zip(self.groups, tables, missing, strict=True):
            group.extend(table, count)
        return True

    def capacity(self, tables: Tables) -> int:
        """Tokens that `tables` hold."""
        return min(len(table) * group.block_tokens for group, table in zip(self.groups, tables, strict=True))

    def free(self, tables: Tables) -> None:
        """Ends the sequence references of `tables`, which stay as they are: a plan may still show them."""
        for group, table in zip(self.groups, tables, strict=True):
            group.drop(table)

    def hold_io(self, group: int, blocks: Iterable[int]) -> None:
        """I/O begins on blocks that a sequence holds: they outlive that sequence."""
        self.groups[group].hold_io(blocks)

    def release_io(self, group: int, blocks: Iterable[int]) -> None:
        """I/O on blocks is over."""
        self.groups[group].release_io(blocks)

    def check_invariants(self, tables: Iterable[Tables]) -> None:
        """Raises AssertionError unless free + used = all, and `tables`, of all holders, match every count."""
        held = list(tables)
        for number, group in enumerate(self.groups):
            group.check_invariants([each[number] for each in held])
