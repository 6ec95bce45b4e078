"""Attention of one or a few new queries of each sequence over its paged keys and values.

    softmax(q k^T / sqrt(dim) + mask) v

It is as fast as keys and values leave memory, which they do once: all queries that see them are rows of one tile (the
steps are in attention_tiles.py). Its rows are padded to the 16 of the tensor cores. That costs nothing on an H200: the
32 KiB of 64 positions of 128 values take one of its processors some 1,500 cycles to arrive, their products with 16 rows
200 to 300. With up to four rows, multiplying and summing on the ordinary cores (`TENSOR_CORES: 0`) may be as good.

Sequences are split, so that a long one fills the device too, and a second kernel joins the parts (attention_parts.py).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import attention_parts, attention_tiles, prefill_attention
from kernels.attention_parts import MAX_SPLITS, join_parts, parts_of, store_part
from kernels.attention_tiles import LOWEST, Defaults, attend_tiles, checked
from kernels.tuning import Config

DEFAULTS = Defaults(
    usual=Config({"TILE": 64, "TENSOR_CORES": 1}, warps=4, stages=3),
    wide=Config({"TILE": 32, "TENSOR_CORES": 1}, warps=4, stages=3),
    single=Config({"TILE": 16, "TENSOR_CORES": 1}, warps=8, stages=2),
)
CANDIDATES = (
    DEFAULTS.usual,
    Config({"TILE": 128, "TENSOR_CORES": 1}, warps=4, stages=2),
    Config({"TILE": 64, "TENSOR_CORES": 1}, warps=2, stages=3),
    Config({"TILE": 32, "TENSOR_CORES": 1}, warps=1, stages=4),
    Config({"TILE": 32, "TENSOR_CORES": 0}, warps=4, stages=3),
    DEFAULTS.wide,
    DEFAULTS.single,
)

MAX_ROWS = 64
FEW_ROWS = 4
"""Up to which a config without tensor cores holds: products of more would not fit into the registers."""
PROGRAMS = 4
"""To each processor: about three run there at a time, and the rest evens out sequences of unequal lengths."""

__all__ = ["CANDIDATES", "paged_decode_attention", "reference", "split_count", "unsupported"]


def unsupported(dtype: torch.dtype, dim: int, block: int, shared: int, queries_per_work: int = 1) -> str:
    """Why such a pool cannot be attended to, in one sentence; empty: it can."""
    if shared * queries_per_work > MAX_ROWS:
        return (
            f"decode attention supports up to {MAX_ROWS} queries to one KV head, "
            f"not those of {queries_per_work} tokens x {shared} heads"
        )
    return attention_tiles.unsupported(dtype, dim, block, shared)


def split_count(works: int, kv_heads: int, processors: int, longest: int) -> int:
    """Parts to split sequences of up to `longest` tokens in, on a device of so many (multi)processors."""
    return attention_parts.split_count(works * kv_heads, PROGRAMS * processors, longest)


def paged_decode_attention(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    kv_lengths: Tensor,
    *,
    queries_per_work: int = 1,
    splits: int = 1,
    window: int = 0,
    config: Config | None = None,
) -> Tensor:
    """Attends with the last `queries_per_work` tokens of each sequence to those stored up to each one's position.

    `queries` `[works * queries_per_work, heads, dim]` (rows may be strided), `pool` one layer
    `[blocks, kv_heads, 2, block, dim]`, `block_tables` `[works, width]` int32, `kv_lengths` `[works]` int32: tokens
    that are stored, this step's among them. Query i of a work stands at position kv_lengths - queries_per_work + i, and
    sees as many positions as a `window` > 0 says, or all up to its own. Returns as many rows, contiguous; those of a
    sequence of length 0 are zero.

    Each sequence is cut into up to `splits` equal parts. The device reads the lengths, so a captured graph serves any.
    """
    shape = checked(queries, pool, block_tables, kv_lengths)
    tokens, works = len(queries), len(kv_lengths)
    assert not unsupported(shape.dtype, shape.dim, shape.block, shape.shared, queries_per_work)
    assert tokens == works * queries_per_work and 1 <= splits <= MAX_SPLITS
    output = queries.new_empty(queries.shape)
    if not tokens:
        return output

    config = config or shape.config("paged_decode_attention", queries.device, DEFAULTS)
    rows = triton.next_power_of_2(shape.shared * queries_per_work)
    tensor_cores = bool(config.tiles["TENSOR_CORES"]) or rows > FEW_ROWS
    parts, sums = parts_of(output, splits)
    _attend_part[(shape.kv_heads, works, splits)](
        queries,
        pool,
        block_tables,
        kv_lengths,
        parts,
        sums,
        queries.stride(0),
        pool.stride(0),
        block_tables.stride(0),
        window,
        QUERIES=queries_per_work,
        ROWS=max(rows, 16) if tensor_cores else rows,
        **(shape.options(config, window, splits) | {"TENSOR_CORES": tensor_cores}),
    )
    if splits > 1:
        join_parts(parts, sums, output)
    return output


# What changes from batch to batch is not specialized on: that would compile another kernel while a request waits.
@triton.jit(
    do_not_specialize=["table_stride", "window"],
    do_not_specialize_on_alignment=["block_tables", "kv_lengths"],
)
def _attend_part(
    queries: tl.tensor,
    pool: tl.tensor,
    block_tables: tl.tensor,
    kv_lengths: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    query_stride: tl.tensor,
    block_stride: tl.tensor,
    table_stride: tl.tensor,
    window: tl.tensor,
    SCALE: tl.constexpr,
    SHARED: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOWED: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    TENSOR_CORES: tl.constexpr,
) -> None:
    head = tl.program_id(0)  # of the KV heads: neighbours read memory side by side
    work = tl.program_id(1)
    part = tl.program_id(2)
    heads = tl.num_programs(0) * SHARED
    tokens = tl.num_programs(1) * QUERIES
    length = tl.load(kv_lengths + work)
    row = tl.arange(0, ROWS)
    query = row // SHARED
    at = length - QUERIES + query
    token = (work * QUERIES + query).to(tl.int64)
    own = head * SHARED + row % SHARED  # of the query heads
    place = (part * tokens + token) * heads + own
    kept = query < QUERIES

    # Whole tiles of what any query sees, in parts of equal numbers of them.
    left = 0
    if WINDOWED:
        left = tl.maximum(length - QUERIES - window + 1, 0) // TILE * TILE
    each = tl.cdiv(tl.cdiv(length - left, TILE), tl.num_programs(2)) * TILE
    first = left + part * each
    end = tl.minimum(first + each, length)
    if SPLIT and first >= end:
        tl.store(sums + place, tl.full([ROWS], float("-inf"), tl.float32), mask=kept)
        return

    dims = tl.arange(0, PADDED)[None, :]
    inside = kept[:, None] & (dims < DIM)
    loaded = tl.load(queries + (token * query_stride + own * DIM)[:, None] + dims, mask=inside, other=0.0)
    weighted, highest, total = attend_tiles(
        loaded,
        tl.zeros([ROWS, PADDED], tl.float32),
        tl.full([ROWS], LOWEST, tl.float32),
        tl.zeros([ROWS], tl.float32),
        *(first, end, at, window, pool + head * 2 * BLOCK * DIM, block_stride),
        block_tables + work.to(tl.int64) * table_stride,
        *(SCALE, DIM, PADDED, BLOCK, TILE, STAGES),
        MASKED=True,
        WINDOWED=WINDOWED,
        TENSOR_CORES=TENSOR_CORES,
    )
    store_part(parts, sums, place, kept, weighted, highest, total, DIM, PADDED, SPLIT)


def reference(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    kv_lengths: Tensor,
    *,
    queries_per_work: int = 1,
    window: int = 0,
) -> Tensor:
    """The same by torch's operators: prefill's, with as many queries in each work."""
    works = len(kv_lengths)
    starts = torch.arange(works + 1, device=queries.device, dtype=torch.int32) * queries_per_work
    return prefill_attention.reference(queries, pool, block_tables, starts, kv_lengths, window=window)
