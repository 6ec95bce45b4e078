"""Computes attention of one new query of each sequence, or of a few, over its paged keys and values.

    softmax(scale q k^T + mask) v

It is as fast as keys and values leave memory, which they do once: all queries that see them are rows of one tile (the
steps are in attention_tiles.py). Its rows are padded to the 16 of the tensor cores. That costs nothing on an H200: the
32 KiB of 64 positions of 128 values take one of its processors some 1,500 cycles to arrive, their products with 16 rows
200 to 300. With up to four rows, multiplying and summing on the ordinary cores (`TENSOR_CORES: 0`) may be as good.

A sequence with draft tokens has several queries, and all of them are rows of the tile (multi_query.py): up to 64 rows
read the sequence's KV once.

The KV of long sequences is split, so that a long sequence fills the device too, alone or among short ones
(split_kv.py), and a second kernel joins the parts (attention_parts.py).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import prefill_attention
from kernels.attention.attention_parts import join_splits, store_part
from kernels.attention.attention_tiles import (
    PLAIN_SCORES,
    DefaultConfigs,
    ScoreParams,
    attend_tiles,
    begin_rows,
    checked,
    result_of,
)
from kernels.attention.multi_query import UNALIGNED_ARGUMENTS, WIDE_TILE, WIDE_WARPS, MultiQuery, starts_of
from kernels.attention.split_kv import SplitPlan
from kernels.quantized.kv_bytes import views_of
from kernels.sizes import power_of_two
from kernels.tuning import Config

DEFAULT_CONFIGS = DefaultConfigs(
    usual=Config({"TILE": 64, "TENSOR_CORES": 1}, warps=4, stages=3),
    wide=Config({"TILE": 32, "TENSOR_CORES": 1}, warps=4, stages=3),
    single=Config({"TILE": 16, "TENSOR_CORES": 1}, warps=8, stages=2),
)
CANDIDATE_CONFIGS = (
    DEFAULT_CONFIGS.usual,
    Config({"TILE": 128, "TENSOR_CORES": 1}, warps=4, stages=2),
    Config({"TILE": 64, "TENSOR_CORES": 1}, warps=2, stages=3),
    Config({"TILE": 32, "TENSOR_CORES": 1}, warps=1, stages=4),
    Config({"TILE": 32, "TENSOR_CORES": 0}, warps=4, stages=3),
    DEFAULT_CONFIGS.wide,
    DEFAULT_CONFIGS.single,
)

MAX_ROWS_WITHOUT_TENSOR_CORES = 4
"""Up to which a config without tensor cores holds: products of more would not fit into the registers."""


def paged_decode_attention(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    kv_lengths: Tensor,
    *,
    few: MultiQuery | None = None,
    pieces: SplitPlan | None = None,
    scoring: ScoreParams = PLAIN_SCORES,
    sinks: Tensor | None = None,
    output: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """Attends with the newest tokens of each sequence to all of its tokens that are stored, themselves among them.

    The device reads lengths and pieces, so a captured graph serves any.

    Args:
        queries: `[works, heads, dim]`, or `[rows, heads, dim]` where there are `few`, in the pool's format, where that
            is not quantized; rows may be strided.
        pool: one layer, `[blocks, kv_heads, 2, block, dim]`, or `[blocks, kv_heads, 2, bytes]`, contiguous.
        block_tables: `[works, width]` int32, the blocks of each sequence in order.
        kv_lengths: `[works]` int32, stored tokens of each sequence; 0 for padding.
        few: the rows of each sequence; by default it has one.
        pieces: how sequences are cut, of the same lengths and window; by default each is one piece.
        scoring: the scale and the soft cap of scores, and the window of newest tokens that a query sees.
        sinks: `[heads]` fp32, a score for each head of a key whose value is 0; None: there is no such key.
        output: where the result goes, as it is returned; by default it is allocated.

    Returns the queries' shape, contiguous; zeros for a sequence of length 0. Rows that are nobody's stay as they are.

    Example: 2 sequences of 37 and 5 tokens in 100 blocks of 16, 32 query heads on 8 KV heads of 128 values: queries
    `[2, 32, 128]`, pool `[100, 8, 2, 16, 128]`, block_tables `[[4, 9, 7], [2, 0, 0]]`, kv_lengths `[37, 5]`.
    """
    shape = checked(queries, pool, block_tables, kv_lengths, sinks)
    works = len(kv_lengths)
    assert few is not None or len(queries) == works
    output = result_of(queries, output)
    if not works:
        return output

    config = config or shape.config("paged_decode_attention", queries.device, DEFAULT_CONFIGS)
    rows, tiles, most = power_of_two(shape.shared), 1, 1
    if few is not None:
        (rows, tiles), most = few.tiles(shape.shared), few.most
    tensor_cores = bool(config.tiles["TENSOR_CORES"]) or rows > MAX_ROWS_WITHOUT_TENSOR_CORES
    options = shape.options(config, scoring, sinks=sinks is not None, split=pieces is not None)
    options["TENSOR_CORES"] = tensor_cores
    if rows * shape.dim >= WIDE_TILE:
        options["num_warps"] = max(WIDE_WARPS, config.warps)
    row_starts, row_counts, sights = kv_lengths, kv_lengths, kv_lengths  # not read
    if few is not None:
        row_starts, row_counts = few.starts, few.counts
        sights = sights if few.sights is None else few.sights
        assert row_starts.shape == row_counts.shape == (works,) and row_starts.dtype == row_counts.dtype == torch.int32
        assert few.sights is None or (sights.shape == (3, len(queries)) and sights.stride(1) == 1)
    count, parts, sums = works, output, output  # of one piece each: that is the result, and its log-sum-exp is not kept
    owners, starts = kv_lengths, kv_lengths  # not read
    if pieces is not None:
        owners, starts = pieces.owners, pieces.starts
        assert owners.dtype == starts.dtype == torch.int32 and starts.shape == (works + 1,)
        assert owners.is_contiguous() and starts.is_contiguous()
        count = len(owners)
        parts = queries.new_empty((count * most, *queries.shape[1:]), dtype=torch.float32)
        sums = parts.new_empty(parts.shape[:-1])
    memory, scales = views_of(pool)
    _attend_part[(shape.kv_heads, count, tiles)](
        queries,
        memory,
        scales,
        block_tables,
        kv_lengths,
        owners,
        starts,
        row_starts,
        row_counts,
        sights,
        output,
        parts,
        sums,
        queries.stride(0),
        pool.stride(0),
        block_tables.stride(0),
        sights.stride(0),
        most,
        scoring.window,
        queries if sinks is None else sinks,
        ROWS=max(rows, 16) if tensor_cores else rows,
        FEW=few is not None,
        TREES=few is not None and few.sights is not None,
        **options,
    )
    if pieces is not None:
        join_splits(parts, sums, starts, output, few)
    return output


# What changes from batch to batch is not specialized on: that would compile another kernel while a request waits.
@triton.jit(
    do_not_specialize=["table_stride", "sight_stride", "most", "window"],
    do_not_specialize_on_alignment=UNALIGNED_ARGUMENTS,
)
def _attend_part(
    queries: tl.tensor,
    pool: tl.tensor,
    scales: tl.tensor,
    block_tables: tl.tensor,
    kv_lengths: tl.tensor,
    owners: tl.tensor,
    starts: tl.tensor,
    row_starts: tl.tensor,
    row_counts: tl.tensor,
    sights: tl.tensor,
    output: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    query_stride: tl.tensor,
    block_stride: tl.tensor,
    table_stride: tl.tensor,
    sight_stride: tl.tensor,
    most: tl.tensor,
    window: tl.tensor,
    sinks: tl.tensor,
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    FORM: tl.constexpr,
    WINDOWED: tl.constexpr,
    SPLIT: tl.constexpr,
    FEW: tl.constexpr,
    TREES: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    TENSOR_CORES: tl.constexpr,
) -> None:
    SIDE: tl.constexpr = BLOCK * DIM if FORM == 0 else BLOCK * (DIM + 2)
    head = tl.program_id(0)  # of the KV heads: neighbours read memory side by side
    piece = tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(0) * SHARED
    work, part, count = piece, 0, 1
    if SPLIT:
        work = tl.load(owners + piece).to(tl.int64)
        if work < 0:
            return
        begin = tl.load(starts + work)
        part = piece - begin
        count = tl.load(starts + work + 1) - begin
    length = tl.load(kv_lengths + work)
    row = tl.arange(0, ROWS)
    own = head * SHARED + row  # of the query heads
    kept = row < SHARED
    query = tl.zeros([ROWS], tl.int32)  # of the sequence's
    begin_row, queries_of = work, 1
    if FEW:
        QUERIES: tl.constexpr = ROWS // SHARED
        begin_row = tl.load(row_starts + work).to(tl.int64)
        queries_of = tl.load(row_counts + work)
        if tl.program_id(2) * QUERIES >= queries_of:
            return
        query = tl.program_id(2) * QUERIES + row // SHARED
        own = head * SHARED + row % SHARED
        kept = (row < QUERIES * SHARED) & (query < queries_of)
    token = begin_row + query
    at = length - queries_of + query
    lasts, bits = at, at
    if TREES:
        at = tl.load(sights + token, mask=kept, other=0)
        lasts = tl.load(sights + sight_stride + token, mask=kept, other=0)
        bits = tl.load(sights + 2 * sight_stride + token, mask=kept, other=0)

    # Whole tiles of what the queries see, in parts of equal numbers of them.
    left = 0
    if WINDOWED:
        left = tl.maximum(length - queries_of + 1 - window, 0) // TILE * TILE
    each = tl.cdiv(tl.cdiv(length - left, TILE), count) * TILE
    first = (left + part * each).to(tl.int32)
    end = tl.minimum(first + each, length)

    dims = tl.arange(0, PADDED)[None, :]
    inside = kept[:, None] & (dims < DIM)
    loaded = tl.load(queries + (token * query_stride + own * DIM)[:, None] + dims, mask=inside, other=0.0)
    weighted, highest, total = begin_rows(sinks, own, kept, part == 0, PADDED, SINKS)
    weighted, highest, total = attend_tiles(
        loaded,
        weighted,
        highest,
        total,
        first,
        end,
        at,
        lasts,
        bits,
        window,
        pool + head * 2 * SIDE,
        scales + (head * 2 * SIDE + BLOCK * DIM) // 2,
        block_stride,
        block_tables + work * table_stride,
        SCALE=SCALE,
        SOFTCAP=SOFTCAP,
        DIM=DIM,
        BLOCK=BLOCK,
        FORM=FORM,
        TILE=TILE,
        STAGES=STAGES,
        MASKED=True,
        WINDOWED=WINDOWED,
        TREES=TREES,
        TENSOR_CORES=TENSOR_CORES,
    )
    # A piece that tiles leave nothing of has no share; one that is the whole sequence is the result.
    if count > 1:
        store_part(parts, sums, (piece * most + query) * heads + own, kept, weighted, highest, total, DIM, True)
    else:
        store_part(output, sums, token * heads + own, kept, weighted, highest, total, DIM, False)


def reference(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    kv_lengths: Tensor,
    *,
    few: MultiQuery | None = None,
    scoring: ScoreParams = PLAIN_SCORES,
    sinks: Tensor | None = None,
) -> Tensor:
    """Computes the same by torch's operators: prefill's, with one query in each work, or rows that have no gaps."""
    starts, sights = starts_of(few, len(kv_lengths), queries)
    return prefill_attention.reference(
        queries, pool, block_tables, starts, kv_lengths, scoring=scoring, sinks=sinks, sights=sights
    )
