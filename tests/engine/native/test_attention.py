"""Native paged attention against dense attention in float64; and that a row's bits depend on its own KV only."""

import ctypes
import math

import pytest
import torch
from torch import Tensor

from engine.attention_native import MAX_HEAD_DIM, NativeAttention, tiles, unsupported
from engine.attention_torch import TorchAttention
from engine.batch import build_batch
from tests.engine.native.measures import LIMITS, random, relative_error
from tests.engine.test_attention import CPU, SHAPES, dense, filled, write_history

ODD = {
    "lengths": [(0, 1), (0, 63), (0, 257), (256, 1), (62, 1)],
    "odd chunks": [(1, 1), (63, 63), (57, 257), (64, 64), (128, 7), (0, 24), (500, 25)],
}
HEADS = {"9/3": (3, 3), "14/2": (2, 7), "32/8": (8, 4), "4/4": (4, 1), "40/1": (1, 40)}
"""(KV heads, query heads that share one)."""


def attended(
    native: ctypes.CDLL | None,
    shape: list[tuple[int, int]],
    *,
    kv_heads: int,
    shared: int,
    dim: int,
    block: int = 16,
    window: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """What the operator finds, what dense attention finds, and the pool's layer afterwards. Unwritten slots are NaN."""
    contents, plan = filled(shape, block, kv_heads, dim)
    contents = [content.to(dtype).float() for content in contents]
    blocks = 1 + sum(len(work.blocks[0]) - 1 for work in plan.works)
    layers = list(torch.full((2, blocks, kv_heads, 2, block, dim), math.nan, dtype=dtype))
    for layer in layers:
        layer[0] = 0
    write_history(layers[1], contents, plan, block)
    batch = build_batch(plan, block, CPU, None)
    windows = (0, window)
    backend = NativeAttention(native, layers, windows) if native is not None else TorchAttention(layers, windows)
    step = backend.begin(batch)
    new = torch.cat([content[work.start :] for content, work in zip(contents, plan.works, strict=True)])
    heads = torch.cat((random(len(new), kv_heads * shared, dim, seed=1), new), 1).to(dtype)  # as the model has them
    step.store(1, heads[:, kv_heads * shared :])
    queries = heads[:, : kv_heads * shared]
    found = step.attend(1, queries)
    ends = batch.query_lengths.cumsum()
    expected = [
        dense(queries[end - len(work.token_ids) : end].float(), content, work.start, window)
        for end, content, work in zip(ends, contents, plan.works, strict=True)
    ]
    return found, torch.cat(expected), layers[1]


@pytest.mark.parametrize("shape", [*SHAPES, *ODD])
@pytest.mark.parametrize("window", [0, 10, 100])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
def test_paged_equals_dense(
    native: ctypes.CDLL, shape: str, window: int, heads: str, dtype: torch.dtype, limit: float
) -> None:
    kv_heads, shared = HEADS[heads]
    works = {**SHAPES, **ODD}[shape]
    found, expected, _ = attended(native, works, kv_heads=kv_heads, shared=shared, dim=64, window=window, dtype=dtype)
    assert found.dtype == dtype and relative_error(found, expected) < limit


@pytest.mark.parametrize("block", [1, 2, 8, 16, 32, 64])
@pytest.mark.parametrize("dim", [2, 16, 22, 24, 80, 96, 128, MAX_HEAD_DIM])
@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
def test_any_head_and_block_size(native: ctypes.CDLL, block: int, dim: int, dtype: torch.dtype, limit: float) -> None:
    for window in (0, 33):
        found, expected, _ = attended(
            native, ODD["odd chunks"], kv_heads=2, shared=3, dim=dim, block=block, window=window, dtype=dtype
        )
        assert relative_error(found, expected) < limit


@pytest.mark.parametrize("window", [0, 1, 70])
def test_a_rows_bits_depend_on_its_own_kv_only(native: ctypes.CDLL, window: int) -> None:
    """A text of 300 tokens at once, in chunks, token by token, beside others, in other blocks, with more threads."""
    sizes = dict(kv_heads=2, shared=3, dim=40)
    contents = random(300, 4, 40, seed=5)
    queries = random(300, 6, 40, seed=6)

    def rows(begin: int, end: int, block: int, others: list[tuple[int, int]]) -> Tensor:
        shape = [*others, (begin, end - begin)]
        texts, plan = filled(shape, block, sizes["kv_heads"], sizes["dim"])
        texts[-1] = contents[:end]
        count = 1 + sum(len(work.blocks[0]) - 1 for work in plan.works)
        layers = list(torch.full((1, count, 2, 2, block, 40), math.nan))
        write_history(layers[0], texts, plan, block)
        step = NativeAttention(native, layers, (window,)).begin(build_batch(plan, block, CPU, None))
        step.store(0, torch.cat([text[work.start :] for text, work in zip(texts, plan.works, strict=True)]))
        before = sum(length for _, length in others)
        beside = random(before, 6, 40, seed=7)
        return step.attend(0, torch.cat((beside, queries[begin:end])))[before:]

    whole = rows(0, 300, 16, [])
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            for chunk in (1, 7, 64, 299):
                for begin in range(0, 300, max(chunk, 13)):
                    end = min(begin + chunk, 300)
                    for block, others in ((16, []), (8, [(5, 9), (77, 1)]), (64, [(0, 64)] * 3)):
                        assert torch.equal(rows(begin, end, block, others), whole[begin:end]), (begin, end, block)
        finally:
            torch.set_num_threads(before)


def test_both_backends_leave_the_same_pool(native: ctypes.CDLL) -> None:
    """Blocks that a sequence enters are cleared behind what it wrote: nobody may see what their last owner left."""
    for works in SHAPES.values():
        pools = [attended(each, works, kv_heads=2, shared=2, dim=10, block=8)[2] for each in (native, None)]
        torch.testing.assert_close(pools[0], pools[1], rtol=0, atol=0, equal_nan=True)
        assert not pools[0][0].any(), "the null block was written"


def test_tiles_cover_every_row_once() -> None:
    _, plan = filled(ODD["odd chunks"], 16, 1, 2)
    batch = build_batch(plan, 16, CPU, None)
    found = tiles(batch, 3)
    covered = sorted((work, row) for work, _, _, first, count in found.tolist() for row in range(first, first + count))
    assert covered == [(work, row) for work, (_, count) in enumerate(ODD["odd chunks"]) for row in range(3 * count)]
    assert all(tuple(row) == (batch.query_start[w], ODD["odd chunks"][w][0]) for w, *row in found[:, :3].tolist())


def test_what_is_not_supported_is_named() -> None:
    assert unsupported(torch.float32, 22, 16) == ""
    assert unsupported(torch.float16, 64, 16) == "fp32 and bf16 are supported, not fp16"
    assert unsupported(torch.float32, 258, 16) == "head sizes up to 256 are supported, not 258"
    assert unsupported(torch.float32, 64, 48) == "block sizes that divide 64 are supported, not 48"
