"""Computes attention of one new query of each sequence over its paged keys and values.

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

from kernels import attention_parts, prefill_attention
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

FEW_ROWS = 4
"""Up to which a config without tensor cores holds: products of more would not fit into the registers."""
PROGRAMS = 4
"""Programs to each processor: about three run there at a time, and the rest evens out sequences of unequal lengths."""


def split_count(works: int, kv_heads: int, processors: int, longest: int) -> int:
    """Returns how many parts to split sequences of up to `longest` tokens in, on a device with so many processors."""
    return attention_parts.split_count(works * kv_heads, PROGRAMS * processors, longest)


def paged_decode_attention(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    kv_lengths: Tensor,
    *,
    splits: int = 1,
    window: int = 0,
    config: Config | None = None,
) -> Tensor:
    """Attends with the newest token of each sequence to all of its tokens that are stored, itself among them.

    The device reads the lengths, so a captured graph serves any.

    Args:
        queries: `[works, heads, dim]` in the pool's format; rows may be strided.
        pool: one layer, `[blocks, kv_heads, 2, block, dim]`, contiguous.
        block_tables: `[works, width]` int32, the blocks of each sequence in order.
        kv_lengths: `[works]` int32, stored tokens of each sequence; 0 for padding.
        splits: equal parts that each sequence is cut into, at most `MAX_SPLITS`.
        window: stored tokens, the newest ones, that a query sees; 0: all.

    Returns `[works, heads, dim]`, contiguous; zeros for a sequence of length 0.

    Example: 2 sequences of 37 and 5 tokens in 100 blocks of 16, 32 query heads on 8 KV heads of 128 values: queries
    `[2, 32, 128]`, pool `[100, 8, 2, 16, 128]`, block_tables `[[4, 9, 7], [2, 0, 0]]`, kv_lengths `[37, 5]`.
    """
    shape = checked(queries, pool, block_tables, kv_lengths)
    works = len(kv_lengths)
    assert len(queries) == works and 1 <= splits <= MAX_SPLITS
    output = queries.new_empty(queries.shape)
    if not works:
        return output

    config = config or shape.config("paged_decode_attention", queries.device, DEFAULTS)
    rows = triton.next_power_of_2(shape.shared)
    tensor_cores = bool(config.tiles["TENSOR_CORES"]) or rows > FEW_ROWS
    options = shape.options(config, window, splits) | {"TENSOR_CORES": tensor_cores}
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
        ROWS=max(rows, 16) if tensor_cores else rows,
        **options,
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
    work = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    works, heads = tl.num_programs(1), tl.num_programs(0) * SHARED
    length = tl.load(kv_lengths + work)
    row = tl.arange(0, ROWS)
    own = head * SHARED + row  # of the query heads
    place = (part * works + work) * heads + own
    kept = row < SHARED

    # Whole tiles of what the query sees, in parts of equal numbers of them.
    left = 0
    if WINDOWED:
        left = tl.maximum(length - window, 0) // TILE * TILE
    each = tl.cdiv(tl.cdiv(length - left, TILE), tl.num_programs(2)) * TILE
    first = left + part * each
    end = tl.minimum(first + each, length)
    if SPLIT and first >= end:
        tl.store(sums + place, tl.full([ROWS], float("-inf"), tl.float32), mask=kept)
        return

    dims = tl.arange(0, PADDED)[None, :]
    inside = kept[:, None] & (dims < DIM)
    loaded = tl.load(queries + (work * query_stride + own * DIM)[:, None] + dims, mask=inside, other=0.0)
    weighted, highest, total = attend_tiles(
        loaded,
        tl.zeros([ROWS, PADDED], tl.float32),
        tl.full([ROWS], LOWEST, tl.float32),
        tl.zeros([ROWS], tl.float32),
        first,
        end,
        tl.full([ROWS], length - 1, tl.int32),
        window,
        pool + head * 2 * BLOCK * DIM,
        block_stride,
        block_tables + work * table_stride,
        SCALE=SCALE,
        DIM=DIM,
        BLOCK=BLOCK,
        TILE=TILE,
        STAGES=STAGES,
        MASKED=True,
        WINDOWED=WINDOWED,
        TENSOR_CORES=TENSOR_CORES,
    )
    store_part(parts, sums, place, kept, weighted, highest, total, DIM, SPLIT)


def reference(queries: Tensor, pool: Tensor, block_tables: Tensor, kv_lengths: Tensor, *, window: int = 0) -> Tensor:
    """Computes the same by torch's operators: prefill's, with one query in each work."""
    starts = torch.arange(len(kv_lengths) + 1, device=queries.device, dtype=torch.int32)
    return prefill_attention.reference(queries, pool, block_tables, starts, kv_lengths, window=window)
