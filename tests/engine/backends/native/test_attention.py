"""Native paged attention against dense attention in float64; and that a row's bits depend on its own KV only."""

import ctypes
import math
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import Tensor

from engine.backends.native.attention import MAX_HEAD_DIM, SOFTMAX_TILE, NativeAttention, plan, unsupported
from engine.backends.native.library import DTYPE_CODES, AttentionArguments
from engine.backends.reference.attention.paged_attention import ReferenceAttention
from engine.model.batch import build_batch
from tests.engine.backends.native.measures import random
from tests.engine.backends.reference.attention.test_paged_attention import (
    CPU,
    SHAPES,
    dense,
    filled,
    through,
    write_history,
)
from tests.engine.configs import attention
from tests.engine.configs import dense as dense_config

ODD = {
    "lengths": [(0, 1), (0, 63), (0, 257), (256, 1), (62, 1)],
    "odd chunks": [(1, 1), (63, 63), (57, 257), (64, 64), (128, 7), (0, 24), (500, 25)],
    "long": [(1500, 1), (700, 3), (130, 1)],
}
HEADS = {"9/3": (3, 3), "14/2": (2, 7), "32/8": (8, 4), "4/4": (4, 1), "40/1": (1, 40)}
"""(KV heads, query heads that share one)."""
HEAD_DIMS = (2, 16, 22, 24, 48, 80, 96, 112, 128, 192, MAX_HEAD_DIM)
SCORE_PARAMS = [(0.5, 0.0, False), (0.0, 3.0, False), (0.2, 2.0, True)]
"""Scale, soft cap, and whether there are sinks."""
FORMATS_TESTED = pytest.mark.parametrize("dtype", DTYPE_CODES, ids=["fp32", "bf16"])
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 3 * 2**-9 + 2e-4}
"""The largest |found - expected| / sum of weight x |value|.

fp32: a score's error is up to head size x 2^-24 of the sum of |q k|, which is about 10 here. bf16: a weight w (1 + d)
has |d| <= 2^-9, and the sum that divides has the same weights, so the result moves by sum d w (v - result) / sum
w (1 + d), at most 2 x 2^-9 of the sum of w |v|; the result is rounded by 2^-9 more. The power of two is right to 7.5e-5
of a weight."""


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """PyTorch's threads, and so the operators'."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


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
    scale: float = 0.0,
    softcap: float = 0.0,
    sunk: bool = False,
) -> tuple[Tensor, float, Tensor]:
    """What the operator finds, its error as `LIMITS` has it, and the pool's layer then. Unwritten slots are NaN."""
    contents, works = filled(shape, block, kv_heads, dim)
    contents = [content.to(dtype).float() for content in contents]
    blocks = 1 + sum(len(work.blocks[0]) - 1 for work in works.works)
    layers = list(torch.full((2, blocks, kv_heads, 2, block, dim), math.nan, dtype=dtype))
    for layer in layers:
        layer[0] = 0
    write_history(layers[1], contents, works, block)
    batch = build_batch(through(works, window, block), block, CPU, None)
    attentions = [attention(kv_heads * shared, kv_heads, dim, window=each) for each in (0, window)]
    attentions[1] = structs.replace(attentions[1], scale=scale or dim**-0.5, softcap=softcap)
    pool = [layer.flatten(1, 2) for layer in layers]
    backend = NativeAttention(native, pool, attentions) if native else ReferenceAttention(pool, attentions)
    step = backend.begin(batch)
    sinks = random(kv_heads * shared, seed=3) if sunk else None
    new = torch.cat([content[work.start :] for content, work in zip(contents, works.works, strict=True)])
    heads = torch.cat((random(len(new), kv_heads * shared, dim, seed=1), new), 1).to(dtype)  # as the model has them
    step.store(1, heads[:, kv_heads * shared :])
    queries = heads[:, : kv_heads * shared]
    found = step.attend(1, queries, sinks)
    more: Any = {"scale": scale, "softcap": softcap, "sinks": sinks}
    error = 0.0
    for end, content, work in zip(batch.query_lengths.cumsum(), contents, works.works, strict=True):
        rows = slice(end - len(work.token_ids), end)
        sizes = content.clone()
        sizes[:, kv_heads:] = sizes[:, kv_heads:].abs()
        expected, size = (dense(queries[rows].float(), kv, work.start, window, **more) for kv in (content, sizes))
        error = max(error, float(((found[rows].double() - expected).abs() / size).nan_to_num(math.inf).max()))
    return found, error, layers[1]


@pytest.mark.parametrize(("shape", "heads"), list(zip([*SHAPES, *ODD], cycle(HEADS), strict=False)))
@pytest.mark.parametrize("window", [0, 33])
@FORMATS_TESTED
def test_paged_equals_dense(native: ctypes.CDLL, shape: str, window: int, heads: str, dtype: torch.dtype) -> None:
    kv_heads, shared = HEADS[heads]
    works = {**SHAPES, **ODD}[shape]
    found, error, _ = attended(native, works, kv_heads=kv_heads, shared=shared, dim=64, window=window, dtype=dtype)
    assert found.dtype == dtype and error < LIMITS[dtype]


@pytest.mark.parametrize(("shape", "params"), list(zip([*SHAPES, *ODD], cycle(SCORE_PARAMS), strict=False)))
@FORMATS_TESTED
def test_scales_soft_caps_and_sinks(
    level: ctypes.CDLL, shape: str, params: tuple[float, float, bool], dtype: torch.dtype
) -> None:
    more: Any = dict(zip(("scale", "softcap", "sunk"), params, strict=True))
    for window in (0, 33):
        sizes: Any = dict(kv_heads=2, shared=3, dim=24, window=window)
        error = attended(level, {**SHAPES, **ODD}[shape], dtype=dtype, **sizes, **more)[1]
        assert error < LIMITS[dtype]


@FORMATS_TESTED
def test_every_processors_code(level: ctypes.CDLL, dtype: torch.dtype) -> None:
    for shape in ("mixed", "lengths", "long"):
        for kv_heads, shared in HEADS.values():
            sizes: Any = dict(kv_heads=kv_heads, shared=shared, dim=64)
            assert attended(level, {**SHAPES, **ODD}[shape], window=100, dtype=dtype, **sizes)[1] < LIMITS[dtype]
    for dim, block in zip(HEAD_DIMS, cycle((1, 8, 16, 64)), strict=False):
        sizes = dict(kv_heads=2, shared=3, dim=dim, block=block)
        assert attended(level, ODD["odd chunks"], window=33, dtype=dtype, **sizes)[1] < LIMITS[dtype], (dim, block)


class Text:
    """One sequence's keys, values and queries, of which any rows are attended to beside other sequences."""

    def __init__(self, length: int, dtype: torch.dtype, *, kv_heads: int = 2, shared: int = 3, dim: int = 40) -> None:
        self.content = random(length, 2 * kv_heads, dim, seed=5).to(dtype)
        self.queries = random(length, kv_heads * shared, dim, seed=6).to(dtype)

    def rows(
        self,
        native: ctypes.CDLL,
        begin: int,
        end: int,
        *,
        block: int = 16,
        others: list[tuple[int, int]] | None = None,
        window: int = 0,
        beside: float = 1.0,
    ) -> Tensor:
        """What the rows `begin` … `end` - 1 find, computed beside `others`, whose contents are multiplied."""
        others = others or []
        kv_heads, dim, dtype = self.content.shape[1] // 2, self.content.shape[2], self.content.dtype
        texts, works = filled([*others, (begin, end - begin)], block, kv_heads, dim)
        texts = [*(text * beside for text in texts[:-1]), self.content[:end].float()]
        count = 1 + sum(len(work.blocks[0]) - 1 for work in works.works)
        layers = list(torch.full((1, count, kv_heads, 2, block, dim), math.nan, dtype=dtype))
        write_history(layers[0], texts, works, block)
        heads = attention(self.queries.shape[1], kv_heads, dim, window=window)
        step = NativeAttention(native, [layers[0].flatten(1, 2)], [heads]).begin(build_batch(works, block, CPU, None))
        new = torch.cat([text[work.start :] for text, work in zip(texts, works.works, strict=True)])
        step.store(0, new.to(dtype))
        before = sum(length for _, length in others)
        queries = random(before, *self.queries.shape[1:], seed=7).to(dtype) * beside
        return step.attend(0, torch.cat((queries, self.queries[begin:end])))[before:]


@pytest.mark.parametrize(("window", "threads"), [(0, 1), (0, 3), (1, 3), (70, 3)], indirect=["threads"])
@FORMATS_TESTED
def test_a_rows_bits_depend_on_its_own_kv_only(
    level: ctypes.CDLL, window: int, dtype: torch.dtype, threads: int
) -> None:
    """A text of 300 tokens at once, in chunks, token by token, beside others, in other blocks, with more threads."""
    text = Text(300, dtype)
    whole = text.rows(level, 0, 300, window=window)
    for chunk in (1, 7, 64):
        for begin in range(0, 300, max(chunk, 43)):
            end = min(begin + chunk, 300)
            for block, others in ((16, []), (8, [(5, 9), (77, 1)]), (64, [(0, 64)] * 3)):
                found = text.rows(level, begin, end, block=block, others=others, window=window)
                assert torch.equal(found, whole[begin:end]), (begin, end, block)


@pytest.mark.parametrize(("window", "threads"), [(0, 3), (1000, 3)], indirect=["threads"])
@FORMATS_TESTED
def test_a_long_sequences_bits_do_not_depend_on_who_shares_it(
    level: ctypes.CDLL, window: int, dtype: torch.dtype, threads: int
) -> None:
    """Threads divide its positions among themselves; alone or beside others, or as the last row of a prompt."""
    text = Text(2000, dtype)
    prompt = text.rows(level, 1900, 2000, window=window)
    for begin in (1999, 1995):
        for others in ([], [(5000, 1)], [(10, 1)] * 20):
            found = text.rows(level, begin, 2000, others=others, window=window)
            assert torch.equal(found, prompt[begin - 1900 :]), (begin, others)


@pytest.mark.parametrize(("window", "threads"), [(0, 3), (50, 1)], indirect=["threads"])
@FORMATS_TESTED
def test_what_is_not_a_number_stays_where_it_is_seen(
    level: ctypes.CDLL, window: int, dtype: torch.dtype, threads: int
) -> None:
    """In a query, or a key or value of the first KV head; rows of other tokens, heads and sequences keep their bits."""
    for begin, end in ((0, 300), (299, 300)):
        expected = Text(300, dtype).rows(level, begin, end, window=window)
        for position in (261, 299):
            text, sees = Text(300, dtype), torch.zeros(300, 6, dtype=torch.bool)
            text.queries[position, 1, 7] = math.nan
            sees[position, 1] = True
            spoilt = [(text, sees)]
            for side, strange in ((0, math.nan), (2, math.nan), (2, math.inf)):
                text, sees = Text(300, dtype), torch.zeros(300, 6, dtype=torch.bool)
                text.content[position, side, 3] = strange
                sees[position : position + window if window else None, :3] = True
                spoilt.append((text, sees))
            for text, sees in spoilt:
                found = text.rows(level, begin, end, window=window)
                assert torch.equal(found.isfinite().all(-1), ~sees[begin:end])
                assert torch.equal(found[~sees[begin:end]], expected[~sees[begin:end]])
        for others in ([(0, 77)], [(40, 1)] * 5, [(3000, 1)]):
            found = Text(300, dtype).rows(level, begin, end, window=window, others=others, beside=math.nan)
            assert torch.equal(found, expected)


def test_both_backends_leave_the_same_pool(native: ctypes.CDLL) -> None:
    """Blocks that a sequence enters are cleared behind what it wrote: nobody may see what their last owner left."""
    for works in SHAPES.values():
        pools = [attended(each, works, kv_heads=2, shared=2, dim=10, block=8)[2] for each in (native, None)]
        torch.testing.assert_close(pools[0], pools[1], rtol=0, atol=0, equal_nan=True)
        assert not pools[0][0].any(), "the null block was written"


@pytest.mark.parametrize("threads_used", [1, 2, 64])
@pytest.mark.parametrize("window", [0, 1, 200, 512])
def test_units_cover_every_row_and_tile_once(native: ctypes.CDLL, threads_used: int, window: int) -> None:
    shape = [*ODD["odd chunks"], (5000, 1), (3000, 5), (0, 1000)]
    batch = build_batch(filled(shape, 16, 1, 2)[1], 16, CPU, None)
    arguments = AttentionArguments(kv_heads=2, shared=3, dim=64, value_dim=64, block=16, window=window)
    units, partials = plan(native, arguments, batch.query_lengths, batch.kv_lengths, threads_used)
    covered: dict[tuple[int, int], list[int]] = {}
    for work, token, position, first, rows, begin, end, partial in units.tolist():
        assert (token, position) == (batch.query_start[work], shape[work][0])
        for row in range(first, first + rows):
            covered.setdefault((work, row), []).extend(range(begin, end))
        assert partial < 0 or threads_used > 1
    assert sorted(covered) == [(work, row) for work, (_, count) in enumerate(shape) for row in range(3 * count)]
    for (work, row), tiles in covered.items():
        position = shape[work][0] + row // 3
        assert sorted(tiles) == list(range(min(tiles), max(tiles) + 1)), "each tile once"
        seen = max(0, position - window + 1) if window else 0
        assert min(tiles) * SOFTMAX_TILE <= seen and position < (max(tiles) + 1) * SOFTMAX_TILE, (
            "as far as the row sees"
        )
    assert partials.numel() == 0 or threads_used > 1


@pytest.mark.parametrize("threads_used", [2, 3, 64])
def test_a_text_is_cut_by_what_its_window_shows_and_not_by_what_was_before(
    native: ctypes.CDLL, threads_used: int
) -> None:
    """Texts of one window and of many have as many units, as large, and beside a short text, too."""
    arguments = AttentionArguments(kv_heads=2, shared=3, dim=64, value_dim=64, block=16, window=512)
    cuts = []
    for windows in (1, 2, 100):
        batch = build_batch(filled([(512 * windows - 1, 1), (700, 1)], 16, 1, 2)[1], 16, CPU, None)
        units, partials = plan(native, arguments, batch.query_lengths, batch.kv_lengths, threads_used)
        sizes = [(work, end - begin) for work, _, _, _, _, begin, end, _ in units.tolist()]
        assert sum(size for work, size in sizes if work == 0) == 512 // SOFTMAX_TILE
        cuts.append((sizes, partials.numel()))
    assert cuts[0] == cuts[1] == cuts[2]


@pytest.mark.parametrize("threads_used", [1, 2, 64])
@pytest.mark.parametrize("shape", [[(1999, 1)], [(80, 1)] * 32, [(300, 5)]], ids=["one", "many", "several tokens"])
def test_heads_that_share_kv_are_never_parted(
    native: ctypes.CDLL, shape: list[tuple[int, int]], threads_used: int
) -> None:
    """Each part would read the same keys and values again; threads part positions instead."""
    batch = build_batch(filled(shape, 16, 1, 2)[1], 16, CPU, None)
    arguments = AttentionArguments(kv_heads=3, shared=3, dim=64, value_dim=64, block=16)
    units, _ = plan(native, arguments, batch.query_lengths, batch.kv_lengths, threads_used)
    assert not (units[:, 3] % 3).any() and not (units[:, 4] % 3).any()


def test_what_is_not_supported_is_named() -> None:
    assert unsupported(dense_config(head_dim=22), torch.float32, 16) == ""
    assert unsupported(dense_config(), torch.float16, 16) == "fp32 and bf16 are supported, not fp16"
    too_large = "even head sizes up to 576 are supported, not"
    assert unsupported(dense_config(head_dim=578), torch.float32, 16) == f"{too_large} 578"
    assert unsupported(dense_config(head_dim=33), torch.bfloat16, 16) == f"{too_large} 33"
    assert unsupported(dense_config(), torch.float32, 48) == "block sizes that divide 64 are supported, not 48"
