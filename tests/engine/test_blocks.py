"""Block manager: free + used = all, nobody owns a block twice, and neighbours stay together."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core.errors import CapacityError
from core.kvspec import KVGroup, KVSpec, blocks_for
from engine.blocks import NULL_BLOCK, BlockManager, Tables
from engine.free_runs import FreeRuns


def spec(*block_tokens: int) -> KVSpec:
    groups = tuple(
        KVGroup(kind="full", layers=(layer,), block_tokens=tokens, block_bytes=64)
        for layer, tokens in enumerate(block_tokens)
    )
    return KVSpec(groups=groups, layout="test", weights="test")


def one_group(block_count: int, block_tokens: int = 4) -> BlockManager:
    return BlockManager(spec(block_tokens), block_count)


def taken(blocks: BlockManager, tokens: int) -> Tables:
    tables = blocks.allocate(tokens)
    assert tables is not None
    return tables


def test_the_null_block_is_never_given_out() -> None:
    blocks = one_group(6)
    assert sorted(taken(blocks, 20)[0]) == [1, 2, 3, 4, 5]
    assert NULL_BLOCK == 0 and blocks.available == 0


def test_a_pool_without_a_block_beside_the_null_block_is_refused() -> None:
    with pytest.raises(CapacityError, match="pool of 1 blocks"):
        one_group(1)


def test_an_allocation_gets_all_its_blocks_or_none() -> None:
    blocks = one_group(6)
    held = taken(blocks, 12)
    assert blocks.allocate(12) is None
    assert (blocks.available, blocks.used_count, blocks.total) == (2, 3, 5)
    blocks.check_invariants([held])


def test_growth_in_one_group_alone_does_not_happen() -> None:
    blocks = BlockManager(spec(2, 8), 5)  # the first group is full at 8 tokens
    held = taken(blocks, 8)
    before = [list(table) for table in held]
    assert not blocks.grow(held, 9)
    assert [list(table) for table in held] == before
    blocks.check_invariants([held])


def test_capacity_is_that_of_the_group_with_least_room() -> None:
    blocks = BlockManager(spec(2, 8), 9)
    assert blocks.capacity(taken(blocks, 5)) == 6


def test_an_io_reference_outlives_its_sequence() -> None:
    blocks = one_group(6)
    held = taken(blocks, 16)
    blocks.hold_io(0, held[0][1:3])
    blocks.hold_io(0, held[0][1:2])
    blocks.free(held)
    assert blocks.available == 3
    blocks.release_io(0, held[0][1:3])
    assert blocks.available == 4
    blocks.release_io(0, held[0][1:2])
    assert blocks.available == 5
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


class FreeRunsMachine(RuleBasedStateMachine):
    """Free runs against a plain set."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = FreeRuns(1, 40)
        self.free = set(range(1, 41))

    @precondition(lambda self: self.free)
    @rule(data=st.data(), after=st.none() | st.integers(0, 41))
    def take(self, data: st.DataObject, after: int | None) -> None:
        count = data.draw(st.integers(0, len(self.free)))
        got = self.runs.take(count, after)
        assert len(got) == len(set(got)) == count
        assert set(got) <= self.free
        if after is not None and after + 1 in self.free and after not in self.free and count:
            assert got[0] == after + 1
        self.free -= set(got)

    @precondition(lambda self: len(self.free) < 40)
    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from([block for block in range(1, 41) if block not in self.free]))
        longest = next(count for count in range(1, 41) if first + count in self.free or first + count == 41)
        count = data.draw(st.integers(1, longest))
        self.runs.put(first, count)
        self.free |= set(range(first, first + count))

    @invariant()
    def runs_are_the_maximal_runs_of_the_set(self) -> None:
        assert self.runs.count == len(self.free)
        expected: list[tuple[int, int]] = []
        for block in sorted(self.free):
            if expected and sum(expected[-1]) == block:
                expected[-1] = (expected[-1][0], expected[-1][1] + 1)
            else:
                expected.append((block, 1))
        assert list(self.runs.runs()) == expected


class BlocksMachine(RuleBasedStateMachine):
    """The block manager against plain dicts: which sequence and which I/O holds which block of which group."""

    SIZES = (2, 3)
    BLOCKS = 14

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(spec(*self.SIZES), self.BLOCKS)
        self.held: dict[int, Tables] = {}
        self.expected: dict[int, list[list[int]]] = {}  # copies that only this model changes
        self.io: list[tuple[int, list[int]]] = []
        self.number = 0

    def used(self, group: int) -> set[int]:
        used = {block for tables in self.expected.values() for block in tables[group]}
        return used | {block for where, blocks in self.io if where == group for block in blocks}

    def room(self, group: int) -> int:
        return self.BLOCKS - 1 - len(self.used(group))

    def check_new(self, before: list[set[int]], tables: Tables, old: list[list[int]], tokens: int) -> None:
        for group, size in enumerate(self.SIZES):
            assert tables[group][: len(old[group])] == old[group]
            new = tables[group][len(old[group]) :]
            assert not set(new) & before[group] and NULL_BLOCK not in new
            assert len(tables[group]) == max(len(old[group]), blocks_for(tokens, size))

    @rule(tokens=st.integers(1, 16))
    def allocate(self, tokens: int) -> None:
        fits = all(blocks_for(tokens, size) <= self.room(group) for group, size in enumerate(self.SIZES))
        assert self.manager.fits(tokens, 0) == fits
        before = [self.used(group) for group in range(len(self.SIZES))]
        tables = self.manager.allocate(tokens)
        assert (tables is not None) == fits
        if tables is not None:
            self.check_new(before, tables, [[], []], tokens)
            self.held[self.number] = tables
            self.expected[self.number] = [list(table) for table in tables]
            self.number += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=st.integers(1, 24))
    def grow(self, data: st.DataObject, tokens: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        old = self.expected[number]
        fits = all(
            blocks_for(tokens, size) - len(old[group]) <= self.room(group) for group, size in enumerate(self.SIZES)
        )
        before = [self.used(group) for group in range(len(self.SIZES))]
        assert self.manager.grow(self.held[number], tokens) == fits
        self.check_new(before, self.held[number], old, tokens if fits else 0)
        self.expected[number] = [list(table) for table in self.held[number]]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        self.manager.free(self.held.pop(number))
        del self.expected[number]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def hold_io(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        group = data.draw(st.integers(0, len(self.SIZES) - 1))
        blocks = data.draw(st.lists(st.sampled_from(self.expected[number][group]), unique=True))
        self.manager.hold_io(group, blocks)
        self.io.append((group, blocks))

    @precondition(lambda self: self.io)
    @rule(data=st.data())
    def release_io(self, data: st.DataObject) -> None:
        group, blocks = self.io.pop(data.draw(st.integers(0, len(self.io) - 1)))
        self.manager.release_io(group, blocks)

    @invariant()
    def free_and_used_are_all(self) -> None:
        self.manager.check_invariants(self.held.values())
        for group, pool in enumerate(self.manager.groups):
            assert pool.available == self.room(group)
        assert self.manager.used_count == sum(len(self.used(group)) for group in range(len(self.SIZES)))


TestFreeRuns = FreeRunsMachine.TestCase
TestFreeRuns.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestBlocks = BlocksMachine.TestCase
TestBlocks.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
