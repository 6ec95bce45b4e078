"""Computes causal attention of many queries over paged keys and values: ragged batches in one launch.

    softmax(scale q k^T + mask) v

tiled as in FlashAttention-2 (Dao, 2023, https://arxiv.org/abs/2307.08691; the steps are in attention_tiles.py). A tile
of queries holds all heads that share a KV head, for which keys and values are loaded once. Only tiles of keys that are
crossed by the diagonal, or by the edge of a sliding window, are masked; fully masked tiles are never loaded.

Works differ in length, so tiles are numbered through the flat batch: tile t belongs to the last work w with
query_start[w] // QUERIES + w <= t. Each work thus has enough tiles, and the host needs no table. Programs start from
the end: the last tiles of a prompt have the most keys, and small tiles fill the gaps at the end.

A few queries after a long cached prefix make few tiles: then the keys are split too (attention_parts.py).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.attention_parts import MAX_SPLITS, join_parts, parts_of, split_count, store_part
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
from kernels.attention.multi_query import hidden_in_tree
from kernels.attention.overlapped_tiles import MIN_OVERLAPPED_TILES, attend_overlapped, overlaps
from kernels.device import multiplies_by_groups, processors
from kernels.launching import Launch, launched_directly, prepared
from kernels.quantized.kv_bytes import views_of
from kernels.quantized.kv_halves import by_pairs, scaled_queries
from kernels.shape_cache import by_shape
from kernels.sizes import power_of_two
from kernels.tuning import Config

DEFAULT_CONFIGS = DefaultConfigs(
    usual=Config({"ROWS": 128, "TILE": 64}, warps=8, stages=3),
    wide=Config({"ROWS": 128, "TILE": 32}, warps=8, stages=3),
    single=Config({"ROWS": 32, "TILE": 16}, warps=8, stages=2),
)
REGISTER_CONFIGS = DefaultConfigs(
    usual=Config({"ROWS": 128, "TILE": 32}, warps=8, stages=3),
    wide=Config({"ROWS": 64, "TILE": 32}, warps=8, stages=2),
    single=DEFAULT_CONFIGS.single,
)
"""On devices whose products take their operands from registers: larger tiles would spill, and tiles of wide heads
need more than the 99 KiB of shared memory of sm_86, 89 and 120."""
QUANTIZED_CONFIG = Config({"ROWS": 128, "TILE": 16}, warps=8, stages=2)
QUANTIZED_REGISTER_CONFIG = Config({"ROWS": 64, "TILE": 16}, warps=8, stages=2)
"""For wide heads with a quantized KV pool: dequantizing takes registers on every device."""
CANDIDATE_CONFIGS = (
    DEFAULT_CONFIGS.usual,
    Config({"ROWS": 128, "TILE": 128}, warps=8, stages=2),
    Config({"ROWS": 64, "TILE": 64}, warps=4, stages=3),
    Config({"ROWS": 64, "TILE": 128}, warps=4, stages=2),
    DEFAULT_CONFIGS.wide,
    REGISTER_CONFIGS.wide,
    QUANTIZED_CONFIG,
    QUANTIZED_REGISTER_CONFIG,
    DEFAULT_CONFIGS.single,
)

SEARCH_WIDTH = tl.constexpr(256)
"""Sequences that a program searches at once."""
FULL_RATE_ROWS = 64
"""Rows from which four warps use the full rate of the tensor cores."""


def prefill_attention(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    kv_lengths: Tensor,
    *,
    longest: int,
    scoring: ScoreParams = PLAIN_SCORES,
    sinks: Tensor | None = None,
    splits: int | None = None,
    output: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """Attends from each query to the stored tokens of its sequence up to its position.

    Query i of work w stands at position kv_lengths[w] - queries of w + i.

    Args:
        queries: `[tokens, heads, dim]` in the pool's format, where that is not quantized; rows may be strided.
        pool: one layer, `[blocks, kv_heads, 2, block, dim]`, or `[blocks, kv_heads, 2, bytes]`, contiguous.
        block_tables: `[works, width]` int32, the blocks of each work's sequence in order.
        query_start: `[works + 1]` int32, the rows of work w are query_start[w] … query_start[w + 1] - 1.
        kv_lengths: `[works]` int32, stored tokens of each sequence, this step's among them.
        longest: a bound of the queries of one work: if none fills a tile, tiles get smaller.
        scoring: the scale and the soft cap of scores, and the window of positions that a query sees.
        sinks: `[heads]` fp32, a score for each head of a key whose value is 0; None: there is no such key.
        splits: equal parts that the keys of each tile are cut into; by default as many as the device has processors
            for, if sequences are as long as the tables are wide.
        output: memory for the result; by default it is allocated.

    Returns `[tokens, heads, dim]`, contiguous; zeros for a work of length 0, undefined from query_start[works] on.

    Example: 5 new tokens behind 32 stored ones, and a prompt of 3; 32 query heads on 8 KV heads of 128 values: queries
    `[8, 32, 128]`, pool `[100, 8, 2, 16, 128]`, block_tables `[[4, 9, 7], [2, 0, 0]]`, query_start `[0, 5, 8]`,
    kv_lengths `[37, 3]`, longest 5.
    """
    shape = checked(queries, pool, block_tables, kv_lengths, sinks)
    tokens, works = queries.shape[0], kv_lengths.shape[0]
    assert query_start.shape == (works + 1,) and query_start.is_contiguous() and query_start.dtype == torch.int32
    output = output_for(queries, output)
    if not tokens:
        return output

    config = config or _config_of(shape, queries.device)
    rows = min(config.tiles["ROWS"], max(FULL_RATE_ROWS, power_of_two(longest * shape.shared)))
    warps = max(4, config.warps * rows // config.tiles["ROWS"])
    tile = rows // shape.shared
    tiles = tokens // tile + works
    if splits is None:
        stored = block_tables.shape[1] * shape.block
        seen = min(stored, tile + scoring.window) if scoring.window else stored
        splits = split_count(shape.kv_heads * tiles, processors(queries.device), seen)
    assert 1 <= splits <= MAX_SPLITS
    parts, sums = parts_of(output, splits)
    memory, scales = views_of(pool)
    overlapped = overlaps(queries.device, shape, scoring, rows, config.tiles["TILE"])
    attend = _prepared_launch(shape, config, scoring, sinks is not None, splits > 1, overlapped, rows, warps)
    attend(
        (shape.kv_heads, tiles, splits),
        queries,
        memory,
        scales,
        block_tables,
        query_start,
        kv_lengths,
        parts,
        sums,
        tokens,
        queries.stride(0),
        pool.stride(0),
        block_tables.stride(0),
        works,
        scoring.window,
        queries if sinks is None else sinks,
    )
    if splits > 1:
        join_parts(parts, sums, output)
    return output


@by_shape
def _config_of(shape: HeadShape, device: torch.device) -> Config:
    defaults = DEFAULT_CONFIGS if multiplies_by_groups(device) else REGISTER_CONFIGS
    if shape.kv_format and defaults is DEFAULT_CONFIGS:
        defaults = defaults._replace(wide=QUANTIZED_CONFIG)
    elif shape.kv_format:  # sm_120 would spill
        defaults = defaults._replace(usual=REGISTER_CONFIGS.wide, wide=QUANTIZED_REGISTER_CONFIG)
    return shape.config("prefill_attention", device, defaults)


@by_shape
def _prepared_launch(
    shape: HeadShape,
    config: Config,
    scoring: ScoreParams,
    sinks: bool,
    split: bool,
    overlapped: bool,
    rows: int,
    warps: int,
) -> Launch:
    options = shape.options(config, scoring, sinks=sinks, split=split)
    return prepared(_attend, **options | {"OVERLAPPED": overlapped, "ROWS": rows, "num_warps": warps})


# Arguments that change from batch to batch are not specialized: a new kernel would be compiled during a request.
@launched_directly
@triton.jit(
    do_not_specialize=["tokens", "table_stride", "works", "window"],
    do_not_specialize_on_alignment=["block_tables", "query_start", "kv_lengths"],
)
def _attend(
    queries: tl.tensor,
    pool: tl.tensor,
    scales: tl.tensor,
    block_tables: tl.tensor,
    query_start: tl.tensor,
    kv_lengths: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    tokens: tl.tensor,
    query_stride: tl.tensor,
    block_stride: tl.tensor,
    table_stride: tl.tensor,
    works: tl.tensor,
    window: tl.tensor,
    sinks: tl.tensor,
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    SHARED: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    FORMAT: tl.constexpr,
    WINDOWED: tl.constexpr,
    SPLIT: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    COPIES: tl.constexpr,
) -> None:
    QUERIES: tl.constexpr = ROWS // SHARED
    SIDE: tl.constexpr = BLOCK * DIM if FORMAT == 0 else BLOCK * (DIM + 2)
    head = tl.program_id(0)  # of the KV heads: neighbours share the sequence, and its KV lies beside theirs
    heads = tl.num_programs(0) * SHARED
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    work = work_of(tile, query_start, works, 1, QUERIES)
    begin = tl.load(query_start + work)
    count = tl.load(query_start + work + 1) - begin
    first = (tile - begin // QUERIES - work) * QUERIES
    if first >= count:
        return

    length = tl.load(kv_lengths + work)
    row = tl.arange(0, ROWS)
    query = first + row // SHARED
    valid = (query < count) & (row < QUERIES * SHARED)
    token = (begin + query).to(tl.int64)
    query_head = head * SHARED + row % SHARED  # of the query heads
    dims = tl.arange(0, PADDED)[None, :]
    inside = valid[:, None] & (dims < DIM)
    loaded = tl.load(queries + (token * query_stride + query_head * DIM)[:, None] + dims, mask=inside, other=0.0)

    # Positions of the tile's first and last query. Keys before `common` are visible to the first and all later queries.
    first_position = length - count + first
    last_position = tl.minimum(first_position + QUERIES, length) - 1
    common = tl.maximum(first_position + 1, 0) // TILE * TILE
    lowest_key, start = 0, 0
    if WINDOWED:
        # Keys before `lowest_key` are hidden from the first query; keys from `start` on are visible to the last.
        lowest_key = tl.maximum(first_position - window + 1, 0) // TILE * TILE
        start = tl.cdiv(tl.maximum(last_position - window + 1, 0), TILE) * TILE
    end = last_position + 1
    if SPLIT:
        part_length = tl.cdiv(tl.cdiv(end - lowest_key, TILE), tl.num_programs(2)) * TILE
        lowest_key += tl.program_id(2) * part_length
        end = tl.minimum(lowest_key + part_length, end)

    query_positions = length - count + query
    keys = pool + head * 2 * SIDE
    key_scales = scales + head * SIDE + BLOCK * DIM // 2
    table = block_tables + work.to(tl.int64) * table_stride
    loaded, unit = scaled_queries(loaded, FORMAT)
    PAIRS: tl.constexpr = by_pairs(FORMAT, loaded.dtype.primitive_bitwidth, ROWS, PADDED)
    weighted, highest, total = begin_rows(ROWS, PADDED // 2 if PAIRS else PADDED)
    odd, odd_queries = weighted, loaded
    if PAIRS:
        loaded, odd_queries = tl.split(tl.reshape(loaded, [ROWS, PADDED // 2, 2]))
    # In three spans: crossed by the window's edge, visible to all queries, crossed by the diagonal.
    inner_begin = tl.maximum(lowest_key, start)
    diagonal_begin = tl.maximum(inner_begin, common)
    if OVERLAPPED:
        tiles = (tl.minimum(common, end) - inner_begin) // TILE
        tiles = tl.where(tiles < MIN_OVERLAPPED_TILES, 0, tiles)
        diagonal_begin = inner_begin + tiles * TILE
        weighted, highest, total = attend_overlapped(
            loaded,
            weighted,
            highest,
            total,
            inner_begin,
            diagonal_begin,
            keys,
            block_stride,
            table,
            SCALE=SCALE,
            SOFTCAP=SOFTCAP,
            DIM=DIM,
            BLOCK=BLOCK,
            TILE=TILE,
            STAGES=STAGES,
        )
    for span in tl.static_range(0 if WINDOWED else 1, 3):
        if span == 0:
            begin_span, end_span = lowest_key, tl.minimum(start, end)
        elif span == 1:
            begin_span, end_span = inner_begin, tl.minimum(common, end)
        else:
            begin_span, end_span = diagonal_begin, end
        if span != 1 or not OVERLAPPED:
            weighted, odd, highest, total = attend_tiles(
                loaded,
                odd_queries,
                unit,
                weighted,
                odd,
                highest,
                total,
                begin_span,
                end_span,
                query_positions,
                query_positions,
                query_positions,
                window,
                keys,
                key_scales,
                block_stride,
                table,
                SCALE=SCALE,
                SOFTCAP=SOFTCAP,
                DIM=DIM,
                BLOCK=BLOCK,
                FORMAT=FORMAT,
                TILE=TILE,
                STAGES=STAGES,
                MASKED=span != 1,
                WINDOWED=WINDOWED,
                TREES=False,
                TENSOR_CORES=True,
                PAIRS=PAIRS,
                COPIES=COPIES,
            )
    if PAIRS:
        weighted = tl.interleave(weighted, odd)
    if SINKS:
        weighted, highest, total = add_sinks(
            weighted, highest, total, sinks, query_head, valid & (tl.program_id(2) == 0)
        )
    part_row = (tl.program_id(2) * tokens + token) * heads + query_head
    store_part(parts, sums, part_row, valid, weighted, highest, total, DIM, SPLIT)


@triton.jit
def work_of(
    tile: tl.tensor, query_start: tl.tensor, works: tl.tensor, EACH: tl.constexpr, ROWS: tl.constexpr
) -> tl.tensor:
    """Finds the sequence of a tile of `ROWS` rows, with `EACH` rows for each query (see the module docstring)."""
    found = 0
    for first in range(0, works, SEARCH_WIDTH):
        work = first + tl.arange(0, SEARCH_WIDTH)
        first_tile = tl.load(query_start + work, mask=work < works, other=0) * EACH // ROWS + work
        found += tl.sum(((work < works) & (first_tile <= tile)).to(tl.int32))
    return found - 1


def reference(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    kv_lengths: Tensor,
    *,
    scoring: ScoreParams = PLAIN_SCORES,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
) -> Tensor:
    """Computes the same with torch operators, one sequence after the other, in the queries' precision.

    `tree_mask` is as in `MultiQuery`; the kernel does not support it.
    """
    _, heads, dim = queries.shape
    kv_heads = pool.shape[1]
    output = torch.zeros_like(queries, memory_format=torch.contiguous_format)
    starts = query_start.tolist()
    for work, length in enumerate(kv_lengths.tolist()):
        first, end = starts[work], starts[work + 1]
        if not length or first == end:
            continue
        blocks = block_tables[work, : -(-length // pool.shape[3])].long()
        stored = pool[blocks].permute(2, 1, 0, 3, 4).flatten(2, 3)[:, :, :length]  # [2, kv_heads, length, dim]
        keys, values = stored.repeat_interleave(heads // kv_heads, 1)
        scores = torch.einsum("qhd,hkd->hqk", queries[first:end], keys)
        scores *= dim**-0.5 if scoring.scale is None else scoring.scale
        if scoring.softcap:
            scores = (scores / scoring.softcap).tanh() * scoring.softcap
        query_positions = torch.arange(length - (end - first), length, device=queries.device)[:, None]
        key = torch.arange(length, device=queries.device)
        window = scoring.window
        if tree_mask is None:
            hidden = key > query_positions
        else:
            query_positions, hidden = tree_mask[0, first:end, None], hidden_in_tree(key, tree_mask[:, first:end])
        if window:
            hidden = hidden | (key <= query_positions - window)
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            more = sinks.to(scores.dtype)[:, None, None].expand(-1, end - first, 1)
            scores = torch.cat((scores, more), -1)
        weights = scores.softmax(-1)[..., :length]
        output[first:end] = torch.einsum("hqk,hkd->qhd", weights, values)
    return output
