"""Computes attention of one new query of each sequence, or of a few, over its paged keys and values.

    softmax(scale q k^T + mask) v

The kernel is limited by the memory bandwidth for keys and values, which are read once: all queries that see them are
rows of one tile (the steps are in attention_tiles.py). Its rows are padded to the 16 of the tensor cores. That costs
nothing on an H200: 32 KiB, 64 positions of 128 values, take one of its processors about 1,500 cycles to arrive, their
products with 16 rows 200 to 300. With up to four rows, multiplying and summing on the ordinary cores (`TENSOR_CORES:
0`) may be as good.

A sequence with draft tokens has several queries, and all of them are rows of the tile (multi_query.py): up to 64 rows
read the sequence's KV once.

The KV of long sequences is split, so that a long sequence fills the device too, alone or among short ones
(split_kv.py), and a second kernel joins the parts (attention_parts.py).
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import prefill_attention
from kernels.attention.attention_tiles import (
    PLAIN_SCORES,
    DefaultConfigs,
    HeadShape,
    ScoreParams,
    add_sinks,
    attend_tiles,
    begin_rows,
    checked,
    output_for,
)
from kernels.attention.decode_launch import (
    UNALIGNED_ARGUMENTS,
    DecodeVariant,
    decode_launch,
    part_of_program,
    queries_of_sequence,
    store_decoded,
    visible_to_queries,
)
from kernels.attention.multi_query import WIDE_TILE, WIDE_WARPS, MultiQuery, starts_of
from kernels.attention.split_kv import SplitPlan
from kernels.launching import Launch, launched_directly, prepared
from kernels.quantized.kv_halves import by_pairs, scaled_queries
from kernels.shape_cache import by_shape
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
"""Maximum rows of a config without tensor cores: more would not fit into the registers."""


def paged_decode_attention(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    kv_lengths: Tensor,
    *,
    multi_query: MultiQuery | None = None,
    split: SplitPlan | None = None,
    scoring: ScoreParams = PLAIN_SCORES,
    sinks: Tensor | None = None,
    output: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """Attends from the newest tokens of each sequence to all of its stored tokens, including themselves.

    The device reads lengths and the split plan, so a captured graph serves any.

    Args:
        queries: `[works, heads, dim]`, or `[rows, heads, dim]` with `multi_query`, in the format of the pool if that is
            not quantized; rows may be strided.
        pool: one layer, `[blocks, kv_heads, 2, block, dim]`, or `[blocks, kv_heads, 2, bytes]`, contiguous.
        block_tables: `[works, width]` int32, the blocks of each sequence in order.
        kv_lengths: `[works]` int32, stored tokens of each sequence; 0 for padding.
        multi_query: the query rows of each sequence; by default it has one.
        split: split plan for these lengths and this window; by default no sequence is split.
        scoring: scale and soft cap of the scores, and the sliding window.
        sinks: `[heads]` fp32, each head's score of a key whose value is 0; None for no such key.
        output: memory for the result; by default it is allocated.

    Returns the queries' shape, contiguous; zeros for a sequence of length 0. Padding rows stay as they are.

    Example: 2 sequences of 37 and 5 tokens in 100 blocks of 16, 32 query heads on 8 KV heads of 128 values: queries
    `[2, 32, 128]`, pool `[100, 8, 2, 16, 128]`, block_tables `[[4, 9, 7], [2, 0, 0]]`, kv_lengths `[37, 5]`.
    """
    shape = checked(queries, pool, block_tables, kv_lengths, sinks)
    works = kv_lengths.shape[0]
    assert multi_query is not None or queries.shape[0] == works
    output = output_for(queries, output)
    if not works:
        return output

    rows, tiles = (power_of_two(shape.shared), 1) if multi_query is None else multi_query.tiles(shape.shared)
    launch = decode_launch(queries, pool, block_tables, kv_lengths, output, multi_query, split)
    attend = _prepared_launch(shape, scoring, sinks is not None, rows, launch.variant, queries.device, config)
    own_arguments = queries.stride(0), scoring.window, queries if sinks is None else sinks
    attend((shape.kv_heads, launch.programs, tiles), *launch.arguments, *own_arguments)
    launch.finish()
    return output


@by_shape
def _prepared_launch(
    shape: HeadShape,
    scoring: ScoreParams,
    sinks: bool,
    rows: int,
    variant: DecodeVariant,
    device: torch.device,
    config: Config | None,
) -> Launch:
    defaults = DEFAULT_CONFIGS
    if shape.kv_format and rows * shape.dim >= WIDE_TILE // 2:  # converting takes registers, too
        defaults = defaults._replace(usual=defaults.wide)
    config = config or shape.config("paged_decode_attention", device, defaults)
    if rows * shape.dim >= WIDE_TILE:
        config = replace(config, warps=max(WIDE_WARPS, config.warps))
    tensor_cores = bool(config.tiles["TENSOR_CORES"]) or rows > MAX_ROWS_WITHOUT_TENSOR_CORES
    options = shape.options(config, scoring, sinks=sinks, split=variant.split)
    options |= {"TENSOR_CORES": tensor_cores, "ROWS": max(rows, 16) if tensor_cores else rows}
    return prepared(_attend_part, MULTI_QUERY=variant.multi_query, TREES=variant.trees, **options)


# Arguments that change from batch to batch are not specialized: a new kernel would be compiled during a request.
@launched_directly
@triton.jit(
    do_not_specialize=["table_stride", "mask_stride", "max_queries", "window"],
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
    tree_mask: tl.tensor,
    output: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    block_stride: tl.tensor,
    table_stride: tl.tensor,
    mask_stride: tl.tensor,
    max_queries: tl.tensor,
    query_stride: tl.tensor,
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
    FORMAT: tl.constexpr,
    WINDOWED: tl.constexpr,
    SPLIT: tl.constexpr,
    MULTI_QUERY: tl.constexpr,
    TREES: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    COPIES: tl.constexpr,
    TENSOR_CORES: tl.constexpr,
) -> None:
    SIDE: tl.constexpr = BLOCK * DIM if FORMAT == 0 else BLOCK * (DIM + 2)
    head = tl.program_id(0)  # of the KV heads: neighbours read memory side by side
    program = tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(0) * SHARED
    work, part, count = part_of_program(owners, starts, program, SPLIT)
    if SPLIT:  # noqa: SIM102 - a compile-time condition
        if work < 0:
            return
    length = tl.load(kv_lengths + work)
    row = tl.arange(0, ROWS)
    query_head = head * SHARED + row  # of the query heads
    valid = row < SHARED
    query = tl.zeros([ROWS], tl.int32)  # of the sequence's
    first_row, query_count = queries_of_sequence(row_starts, row_counts, work, MULTI_QUERY)
    if MULTI_QUERY:
        QUERIES: tl.constexpr = ROWS // SHARED
        if tl.program_id(2) * QUERIES >= query_count:
            return
        query = tl.program_id(2) * QUERIES + row // SHARED
        query_head = head * SHARED + row % SHARED
        valid = (row < QUERIES * SHARED) & (query < query_count)
    token = first_row + query
    query_positions, seen_until, tree_bits = visible_to_queries(
        tree_mask, mask_stride, token, length - query_count + query, valid, TREES
    )

    # The visible tiles, split into parts with equal numbers of tiles.
    lowest_key = 0
    if WINDOWED:
        lowest_key = tl.maximum(length - query_count + 1 - window, 0) // TILE * TILE
    part_length = tl.cdiv(tl.cdiv(length - lowest_key, TILE), count) * TILE
    first = (lowest_key + part * part_length).to(tl.int32)
    end = tl.minimum(first + part_length, length)

    dims = tl.arange(0, PADDED)[None, :]
    inside = valid[:, None] & (dims < DIM)
    loaded = tl.load(queries + (token * query_stride + query_head * DIM)[:, None] + dims, mask=inside, other=0.0)
    loaded, unit = scaled_queries(loaded, FORMAT)
    PAIRS: tl.constexpr = by_pairs(FORMAT, loaded.dtype.primitive_bitwidth, ROWS, PADDED)
    weighted, highest, total = begin_rows(ROWS, PADDED // 2 if PAIRS else PADDED)
    odd, odd_queries = weighted, loaded
    if PAIRS:
        loaded, odd_queries = tl.split(tl.reshape(loaded, [ROWS, PADDED // 2, 2]))
    weighted, odd, highest, total = attend_tiles(
        loaded,
        odd_queries,
        unit,
        weighted,
        odd,
        highest,
        total,
        first,
        end,
        query_positions,
        seen_until,
        tree_bits,
        window,
        pool + head * 2 * SIDE,
        scales + head * SIDE + BLOCK * DIM // 2,
        block_stride,
        block_tables + work * table_stride,
        SCALE=SCALE,
        SOFTCAP=SOFTCAP,
        DIM=DIM,
        BLOCK=BLOCK,
        FORMAT=FORMAT,
        TILE=TILE,
        STAGES=STAGES,
        MASKED=True,
        WINDOWED=WINDOWED,
        TREES=TREES,
        TENSOR_CORES=TENSOR_CORES,
        PAIRS=PAIRS,
        COPIES=COPIES,
    )
    if PAIRS:
        weighted = tl.interleave(weighted, odd)
    if SINKS:
        weighted, highest, total = add_sinks(weighted, highest, total, sinks, query_head, valid & (part == 0))
    output_row, part_row = token * heads + query_head, (program * max_queries + query) * heads + query_head
    store_decoded(output, parts, sums, output_row, part_row, count, valid, weighted, highest, total, DIM)


def reference(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    kv_lengths: Tensor,
    *,
    multi_query: MultiQuery | None = None,
    scoring: ScoreParams = PLAIN_SCORES,
    sinks: Tensor | None = None,
) -> Tensor:
    """Computes the same with torch operators: prefill with one query per sequence, or with rows without gaps."""
    starts, tree_mask = starts_of(multi_query, len(kv_lengths), queries)
    return prefill_attention.reference(
        queries, pool, block_tables, starts, kv_lengths, scoring=scoring, sinks=sinks, tree_mask=tree_mask
    )
