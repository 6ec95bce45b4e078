"""Block manager: free + used = all, nobody owns a block twice, and neighbours stay together."""

import pytest

from contracts.errors import CapacityError
from contracts.kv.spec import KVGroup, KVSpec
from engine.blocks.finding import FoundPrefix
from engine.blocks.manager import BlockManager, Tables


def spec(*shapes: int | tuple[int, int]) -> KVSpec:
    """A group of one layer for each shape: tokens of its blocks, or those and its window."""
    groups = []
    for layer, shape in enumerate(shapes):
        tokens, window = (shape, 0) if isinstance(shape, int) else shape
        groups.append(KVGroup("window" if window else "full", (layer,), tokens, 64, window=window))
    return KVSpec(groups=tuple(groups), layout="test", weights="test")


def one_group(block_count: int, block_tokens: int = 4) -> BlockManager:
    return BlockManager(spec(block_tokens), [block_count])


def taken(blocks: BlockManager, tokens: int) -> Tables:
    tables = blocks.allocate(tokens)
    assert tables is not None
    return tables


def test_a_pool_without_a_block_beside_the_null_block_is_refused() -> None:
    with pytest.raises(CapacityError, match="pool of 1 blocks"):
        one_group(1)


def test_capacity_is_that_of_the_group_with_least_room() -> None:
    blocks = BlockManager(spec(2, 8), [9, 9])
    assert blocks.capacity(taken(blocks, 5)) == 6


def test_an_io_reference_outlives_its_sequence() -> None:
    blocks = one_group(6)
    held = taken(blocks, 16)
    blocks.hold_io(0, held[0][1:3])
    blocks.hold_io(0, held[0][1:2])
    assert (blocks.pinned_count, blocks.quarantined_count) == (2, 0)
    blocks.free(held)
    assert (blocks.available, blocks.pinned_count, blocks.quarantined_count) == (3, 2, 2)
    blocks.release_io(0, held[0][1:3])
    assert (blocks.available, blocks.pinned_count, blocks.quarantined_count) == (4, 1, 1)
    blocks.release_io(0, held[0][1:2])
    assert (blocks.available, blocks.pinned_count, blocks.quarantined_count) == (5, 0, 0)
    blocks.check_invariants([])


def test_a_block_freed_twice_is_caught() -> None:
    blocks = one_group(6)
    held = taken(blocks, 4)
    blocks.free(held)
    with pytest.raises(AssertionError, match="more often"):
        blocks.free(held)


def test_io_on_a_free_block_is_caught() -> None:
    with pytest.raises(AssertionError, match="is free"):
        one_group(6).hold_io(0, [3])


def test_tables_that_are_not_the_references_are_caught() -> None:
    blocks = one_group(6)
    held = taken(blocks, 8)
    with pytest.raises(AssertionError, match="sequence references"):
        blocks.check_invariants([])
    with pytest.raises(AssertionError, match="sequence references"):
        blocks.check_invariants([held, held])


def test_an_allocation_is_one_ascending_run_where_there_is_one() -> None:
    blocks = one_group(65)
    tables = [taken(blocks, 16) for _ in range(16)]
    for number in (3, 5, 6, 7, 4, 12):
        blocks.free(tables[number])
    assert taken(blocks, 80)[0] == list(range(13, 33))  # five tables that were freed out of order


def test_growth_prefers_the_neighbour() -> None:
    blocks = one_group(65)
    tables = [taken(blocks, 4) for _ in range(3)]
    blocks.free(tables[1])
    assert blocks.grow(tables[2], 12)
    assert tables[2][0] == [3, 4, 5]


# what the cache knows


class Text:
    """A sequence's side of the cache, as the scheduler keeps it."""

    def __init__(self, blocks: BlockManager, tokens: list[int], salt: str = "") -> None:
        self.blocks, self.tokens = blocks, tokens
        self.chains = blocks.chains(salt)
        self.known = [0] * len(blocks.groups)
        self.tables: Tables = ()

    def found(self, step: int = 9, *, limit: int | None = None, whole: bool = False) -> FoundPrefix:
        """Finds what the cache has of the text when step `step` is planned."""
        return self.blocks.find(self.tokens, self.chains, limit or len(self.tokens), step, whole=whole)

    def begin(self, step: int = 9) -> FoundPrefix:
        """Allocates the blocks of the text; returns what the cache had of it."""
        found = self.found(step)
        tables = self.blocks.allocate(len(self.tokens), found)
        assert tables is not None
        self.tables, self.known = tables, [len(hit.nodes) for hit in found.hits]
        return found

    def register(self, step: int = 1, *, replace: bool = False) -> None:
        """Registers the whole text, computed in step `step`."""
        self.blocks.register(self.tables, self.chains, self.tokens, self.known, len(self.tokens), step, step, replace)

    def end(self) -> None:
        """Registers the text and frees its blocks, as at the end of a sequence."""
        self.register(replace=True)
        self.blocks.free(self.tables)


def kept_texts(blocks: BlockManager, *texts: list[int], salt: str = "") -> None:
    """Computes and ends these texts, in this order."""
    for tokens in texts:
        text = Text(blocks, tokens, salt)
        text.begin()
        text.end()


def twice(blocks: BlockManager, tokens: list[int]) -> tuple[Text, Text]:
    """Makes two sequences that compute the same text at once: the cache knows the blocks of the first."""
    first, second = Text(blocks, tokens), Text(blocks, tokens)
    first.begin()
    second.begin()
    first.register()
    return first, second


def test_a_block_that_a_fork_has_too_is_not_exchanged() -> None:
    blocks = one_group(20)
    first, second = twice(blocks, list(range(8)))
    second.tokens = list(range(12))
    blocks.grow(second.tables, 12)
    fork = blocks.fork(second.tables)
    second.end()  # its third block would go on from the first's second, which the fork does not hold
    first.end()
    blocks.check_invariants([fork])
    assert Text(blocks, list(range(12))).found().tokens == 8
