"""Moves of blocks: batches have the effect of one move after the other, in the pool, in the host tier and between."""

from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.reference.codec import ReferenceCodec
from engine.backends.reference.device_codec import DeviceCodec
from engine.backends.reference.mover import ReferenceMover
from engine.backends.triton.mover import TritonMover
from engine.kv.host.host_tier import HostTier
from engine.kv.mover import WORD_DTYPE, BlockMover
from engine.kv.moves import batches, runs
from engine.kv.pool import KVPool
from engine.kv.spec import make_spec
from engine.plan import BlockMove
from tests.engine.kv.test_pool import CONFIG

BLOCKS, SLOTS = 6, 4
CPU = torch.device("cpu")


def copies(*pairs: tuple[int, int]) -> list[BlockMove]:
    return [BlockMove("copy", 0, source, target) for source, target in pairs]


@st.composite
def moves(draw: st.DrawFn) -> list[BlockMove]:
    """Few blocks, so that moves meet; runs of one kind, so that batches have several."""
    found: list[BlockMove] = []
    kinds: list[Literal["copy", "out", "in"]] = ["copy", "out", "in"]
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(kinds))
        sources = st.integers(0, SLOTS - 1) if kind == "in" else st.integers(0, BLOCKS - 1)
        targets = st.integers(0, SLOTS - 1) if kind == "out" else st.integers(1, BLOCKS - 1)
        pairs = draw(st.lists(st.tuples(sources, targets), max_size=5))
        found += [BlockMove(kind, 0, source, target) for source, target in pairs]
    return found


def one_by_one(moves: list[BlockMove], pool: list[int], tier: list[int]) -> None:
    for move in moves:
        source, target = (tier if move.kind == "in" else pool), (tier if move.kind == "out" else pool)
        target[move.target] = source[move.source]


@given(moves(), st.integers(1, 4))
def test_batches_in_any_inner_order_do_what_moves_one_by_one_do(given_moves: list[BlockMove], most: int) -> None:
    expected = (list(range(BLOCKS)), list(range(100, 100 + SLOTS)))
    one_by_one(given_moves, *expected)
    pool, tier = list(range(BLOCKS)), list(range(100, 100 + SLOTS))
    cut = list(batches(given_moves, most))
    assert [move for batch in cut for move in batch] == given_moves
    for batch in cut:
        assert 1 <= len(batch) <= most
        read = [(tier if move.kind == "in" else pool)[move.source] for move in batch]
        for move, value in reversed(list(zip(batch, read, strict=True))):  # a scatter's order is not defined
            (tier if move.kind == "out" else pool)[move.target] = value
    assert (pool, tier) == expected


def test_a_batch_is_cut_only_where_the_order_matters() -> None:
    assert list(batches([], 9)) == []
    assert [len(batch) for batch in batches(copies((1, 2), (3, 4), (1, 5)), 9)] == [3]
    assert [len(batch) for batch in batches(copies((1, 2), (3, 1)), 9)] == [2], "what was read may be written"
    assert [len(batch) for batch in batches(copies((1, 2), (2, 3)), 9)] == [1, 1]
    assert [len(batch) for batch in batches(copies((1, 2), (3, 2)), 9)] == [1, 1]
    assert [len(batch) for batch in batches(copies((1, 2), (3, 4), (5, 6)), 2)] == [2, 1]
    out, back = BlockMove("out", 0, 1, 0), BlockMove("in", 0, 0, 1)
    assert list(batches([out, back], 9)) == [[out], [back]]
    both = [BlockMove("out", 0, 1, 2), BlockMove("out", 0, 2, 3)]
    assert list(batches(both, 9)) == [both], "slot 2 is not block 2"
    groups = [BlockMove("copy", 0, 1, 2), BlockMove("copy", 1, 3, 4)]
    assert [len(batch) for batch in batches(groups, 9)] == [1, 1]


def filled(device: torch.device, directory: str, mover: BlockMover) -> tuple[KVPool, HostTier]:
    """Every block of every layer, and every slot, has a value of its own."""
    spec = make_spec(CONFIG, torch.bfloat16, 8, "w")
    tier = HostTier(SLOTS, spec.groups[0], device, directory)
    codec = ReferenceCodec() if device.type == "cpu" else DeviceCodec()
    pool = KVPool(spec, [BLOCKS], device, mover, codec, tier)
    for number, layer in enumerate(pool.layers):
        for block in range(BLOCKS):
            layer[block] = 10 * block + number
    words = spec.groups[0].block_bytes // WORD_DTYPE.itemsize
    blocks = torch.arange(SLOTS * len(CONFIG.layers) * words, dtype=WORD_DTYPE).view(SLOTS, len(CONFIG.layers), words)
    tier.put(range(SLOTS), blocks.to(device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return pool, tier


def contents(pool: KVPool, tier: HostTier) -> tuple[list[bytes], list[bytes]]:
    """The bytes of every block, of all layers, in the pool and in the tier."""
    layers = range(len(pool.layers))
    blocks = [b"".join(bytes(pool.read(0, layer, [block])[0]) for layer in layers) for block in range(BLOCKS)]
    return blocks, [slot.view(torch.uint8).numpy().tobytes() for slot in tier.get(range(SLOTS)).cpu()]


@pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda", 0), marks=pytest.mark.gpu)], ids=str)
@pytest.mark.parametrize(
    ("staged", "in_file", "mover"),
    [
        (1, False, ReferenceMover()),
        (3, False, ReferenceMover()),
        (100, False, ReferenceMover()),
        (3, True, ReferenceMover()),
        (3, False, TritonMover()),
    ],
    ids=["1", "3", "100", "3 in a file", "3 by Triton"],
)
def test_pool_and_tier_end_as_after_one_move_after_the_other(
    device: torch.device, staged: int, in_file: bool, mover: BlockMover, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In all layers, and nowhere else; batches gather at most `staged` blocks."""
    block = make_spec(CONFIG, torch.bfloat16, 8, "w").block_bytes()
    monkeypatch.setattr("engine.kv.pool.STAGED_BYTES", staged * block)

    @settings(max_examples=40)
    @given(moves())
    def check(given_moves: list[BlockMove]) -> None:
        pool, tier = filled(device, str(tmp_path) if in_file else "", mover)
        before = contents(pool, tier)
        assert len({*before[0], *before[1]}) == BLOCKS + SLOTS
        numbers = (list(range(BLOCKS)), list(range(BLOCKS, BLOCKS + SLOTS)))
        one_by_one(given_moves, *numbers)
        pool.move(given_moves)
        every = [*before[0], *before[1]]
        assert contents(pool, tier) == ([every[n] for n in numbers[0]], [every[n] for n in numbers[1]])

    check()


def test_nothing_is_moved_to_the_null_block_or_to_a_tier_that_is_not_there() -> None:
    spec = make_spec(CONFIG, torch.float32, 8, "w")
    pool = KVPool(spec, [BLOCKS], CPU, ReferenceMover(), ReferenceCodec())
    pool.move([])
    for wrong in (BlockMove("copy", 0, 1, 0), BlockMove("copy", 0, 1, BLOCKS), BlockMove("copy", 1, 1, 2)):
        with pytest.raises(AssertionError):
            pool.move([wrong])
    for away in (BlockMove("out", 0, 1, 0), BlockMove("in", 0, 0, 1)):
        with pytest.raises(AssertionError, match="there is none"):
            pool.move([away])


def test_runs_are_ascending_neighbours() -> None:
    assert list(runs([])) == []
    assert list(runs([5])) == [(5, 5)]
    assert list(runs([1, 2, 3, 7, 6, 5, 8, 9])) == [(1, 3), (7, 7), (6, 6), (5, 5), (8, 9)]
