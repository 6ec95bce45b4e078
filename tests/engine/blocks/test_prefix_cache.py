"""Prefix cache: what is found, what it costs to look, what is forgotten first, and that keys prove nothing."""

from itertools import accumulate
from operator import and_, eq
from random import Random
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import contracts.kv.block_hash
import engine.blocks.prefix_cache
from contracts.kv.block_hash import BlockKeys
from engine.blocks.manager import BlockManager
from engine.blocks.prefix_cache import Node, PrefixCache
from tests.engine.blocks.blocks_model import OPERATIONS, BlocksModel
from tests.engine.blocks.test_manager import Text, kept_texts, one_group, spec

A, B, C = ([first, *range(1, 8)] for first in (100, 200, 300))
"""Texts of two blocks of four tokens that share nothing."""


def known(blocks: BlockManager, tokens: list[int], salt: str = "") -> int:
    """Counts the leading tokens that the cache has."""
    return Text(blocks, tokens, salt).found().tokens


def with_tier(block_count: int, slots: int, least: int = 0) -> BlockManager:
    return BlockManager(spec(4), [block_count + 1], slots, lambda count: count >= least)


def in_the_tier(blocks: BlockManager) -> int:
    return sum(node.slot is not None for node in blocks.groups[0].cache)


# what is found


def test_a_text_is_found_up_to_the_token_where_it_goes_on_otherwise() -> None:
    blocks = one_group(20)
    kept_texts(blocks, A)
    assert [known(blocks, [*A[:at], 9, 9, 9]) for at in range(9)] == list(range(9))
    assert [Text(blocks, A).found(limit=at).tokens for at in range(1, 9)] == list(range(1, 9))
    assert [Text(blocks, A).found(limit=at, whole=True).tokens for at in (3, 4, 7, 8)] == [0, 4, 4, 8]


TOKENS = st.sampled_from([0, 1, 256, 257, 65_536])  # some bytes are the same, in the order in which they are compared


@given(texts=st.lists(st.lists(TOKENS, min_size=4, max_size=4), max_size=30), wanted=st.lists(TOKENS, max_size=4))
def test_among_siblings_the_one_that_agrees_longest_is_found(texts: list[list[int]], wanted: list[int]) -> None:
    blocks = one_group(40)
    kept_texts(blocks, *texts)
    agree = [sum(accumulate(map(eq, text, wanted), and_)) for text in texts]
    assert known(blocks, [*wanted, 7]) == max(agree, default=0)


# what a lookup costs


class Watched(Node):
    """Counts how often any node is looked at."""

    __slots__ = ()
    looks: ClassVar[int] = 0

    def __getattribute__(self, name: str) -> object:
        Watched.looks += 1
        return super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        Watched.looks += 1
        return self is other

    __hash__ = object.__hash__


def looks(texts: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How often nodes are looked at to find a text among so many under one parent, and to take in another."""
    monkeypatch.setattr(engine.blocks.prefix_cache, "Node", Watched)
    blocks = one_group(texts + 20)
    stem = [1, 2, 3, 4]
    kept_texts(blocks, *([*stem, number, 0, 0, 0] for number in reversed(range(texts))))
    text = Text(blocks, [*stem, texts // 2, 0, 0, 9, *range(40)])
    Watched.looks = 0
    assert text.found().tokens == 7
    found = Watched.looks
    text.tokens = [*stem, *range(9, 85)]  # 20 blocks, for which one of the others gives way
    text.chains = blocks.chains("")
    text.begin()
    text.end()
    assert blocks.groups[0].evicted == 1
    return found, Watched.looks - found


def test_a_lookup_costs_what_the_text_is_long_and_not_what_the_cache_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = looks(10, monkeypatch), looks(10_000, monkeypatch)
    assert many[0] < few[0] + 20 < 60  # bisection: log2(10,000 / 10) more
    assert many[1] < few[1] + 60 < 400


# keys prove nothing


@pytest.mark.parametrize("sizes", [(1,), (2,), (3, 2)])
def test_with_keys_of_three_bits_everybody_still_reads_their_own_text(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = contracts.kv.block_hash.block_key
    short = b"as long as short keys are"
    few = [bytes([number]) + short for number in range(8)]
    monkeypatch.setattr(contracts.kv.block_hash, "block_key", lambda parent, tokens: few[real(parent, tokens)[0] & 7])
    draw = Random(1)
    hits = collisions = 0
    for _ in range(20):
        model = BlocksModel(tuple([(size, 0) for size in sizes]), 14, slots=10, least=1, ahead=1)
        for _ in range(60):
            model.act(draw.randrange(len(OPERATIONS)), draw.randrange(60), draw.randrange(6), draw.randrange(256))
        model.finish()
        hits += model.counts["hit"]
        collisions += model.counts["duplicate"]
    assert hits > 0 and collisions > 100


# what gives way


def test_the_least_recently_used_goes_first_and_a_text_s_end_before_its_beginning() -> None:
    blocks = one_group(7)
    kept_texts(blocks, A, B, C, A)  # six blocks; A is used again
    assert blocks.cached_count == 6
    gone: list[list[int]] = []
    for _ in range(6):
        blocks.check_invariants([])
        tables = blocks.allocate(4 * (len(gone) + 1))  # one more than are free
        assert tables is not None
        blocks.free(tables)
        gone.append([known(blocks, text) for text in (A, B, C)])
    assert gone == [[8, 4, 8], [8, 0, 8], [8, 0, 4], [8, 0, 0], [4, 0, 0], [0, 0, 0]]


def test_a_pool_in_which_everything_is_idle_has_room_for_all_of_it() -> None:
    blocks = one_group(7)
    kept_texts(blocks, A, B, C)
    assert (blocks.available, blocks.cached_count, blocks.used_count) == (6, 6, 0)
    again = Text(blocks, [*B, *range(9, 25)])
    assert again.begin().tokens == 8
    assert (blocks.available, blocks.cached_count, blocks.used_count) == (0, 0, 6)
    blocks.check_invariants([again.tables])


def test_a_root_goes_with_its_last_child() -> None:
    cache = PrefixCache()
    for tenant in range(3):
        keys = BlockKeys(str(tenant), 4)
        keys.cover(A, 8)
        first = cache.insert(cache.root(keys.root), keys.keys[0], keys.packed[0])
        cache.insert(first, keys.keys[1], keys.packed[1])
        cache.check_invariants()
        assert cache.root(keys.root) is first.parent
        assert len(cache.remove(first)) == 2
        assert cache.root(keys.root) is not first.parent and not list(cache)
    cache.check_invariants()
    assert not cache._roots and not cache._nodes  # nothing is kept for tenants that are gone


# the host tier


def test_what_gives_way_goes_to_the_host_tier_and_comes_back_in_this_order() -> None:
    blocks = with_tier(2, 2)
    kept_texts(blocks, A)
    [first, second] = Text(blocks, A).found().hits[0].nodes
    at = (first.block, second.block)
    kept_texts(blocks, B)
    slots = (first.slot, second.slot)
    out = [(move.kind, move.source, move.target) for move in blocks.take_moves()]
    assert out == [("out", at[1], slots[1]), ("out", at[0], slots[0])]
    again = Text(blocks, A)
    assert again.begin().tokens == 8
    done = blocks.take_moves()
    assert [move.kind for move in done] == ["in", "in"] and blocks.groups[0].evicted == 4  # no slot was left for B
    assert [(move.source, move.target) for move in done] == list(zip(slots, again.tables[0], strict=True))
    blocks.check_invariants([again.tables])


def test_a_tier_that_is_full_forgets_its_oldest() -> None:
    blocks = with_tier(2, 3)
    kept_texts(blocks, A, B, C)
    assert [known(blocks, text) for text in (A, B, C)] == [4, 8, 8]
    kept_texts(blocks, [400, 1, 2, 3])
    assert [known(blocks, text) for text in (A, B, C)] == [0, 8, 8]


def test_what_is_computed_again_is_in_the_pool_only() -> None:
    blocks = with_tier(2, 4, least=99)
    kept_texts(blocks, A, B)
    blocks.take_moves()
    again = Text(blocks, A)
    assert again.begin().tokens == 0
    again.register()
    assert again.known == [2] and in_the_tier(blocks) == 2  # B; A's slots are free again
    assert "in" not in [move.kind for move in blocks.take_moves()]
    blocks.check_invariants([again.tables])


@pytest.mark.parametrize(("least", "found"), [(1, 8), (2, 8), (3, 0)])
def test_what_is_not_worth_returning_is_computed(least: int, found: int) -> None:
    blocks = with_tier(2, 4, least)
    kept_texts(blocks, A, B)
    assert known(blocks, A) == found


@pytest.mark.parametrize(("least", "found"), [(2, 7), (3, 0)])
def test_a_block_that_would_come_back_for_its_beginning_is_one_of_those_to_be_worth_it(least: int, found: int) -> None:
    blocks = with_tier(2, 4, least)
    kept_texts(blocks, A, B)
    assert Text(blocks, A).found(limit=7).tokens == found


def test_a_partial_block_alone_comes_back_only_if_that_is_worth_it() -> None:
    for least, found in ((1, 3), (2, 0)):
        blocks = with_tier(2, 4, least)
        kept_texts(blocks, A, B)
        assert Text(blocks, A).found(limit=3).tokens == found
