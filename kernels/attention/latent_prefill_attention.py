"""Computes causal latent attention of many queries, absorbed, over paged latent vectors: ragged batches in one launch.

    softmax(scale q [c | k]^T + mask) c

The heads of all queries of a work are one list of rows, query after query, which tiles cut wherever they end (the steps
are in latent_tiles.py). Tiles are numbered through the batch as in prefill_attention.py: tile t is of the last work
w with query_start[w] heads / ROWS + w <= t. A few queries behind a long prefix make few tiles: then the keys are split
(attention_parts.py).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.attention_parts import MAX_SPLITS, join_parts, parts_of, split_count, store_part
from kernels.attention.attention_tiles import LOWEST_SCORE
from kernels.attention.latent_tiles import CANDIDATE_CONFIGS, attend_latents, checked, load_queries
from kernels.attention.multi_query import hidden_in_tree
from kernels.attention.prefill_attention import work_of
from kernels.device import processors
from kernels.launching import launched_directly
from kernels.quantized.kv_bytes import views_of
from kernels.tuning import Config

__all__ = ["CANDIDATE_CONFIGS", "latent_prefill_attention", "output_for", "reference"]


def latent_prefill_attention(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    kv_lengths: Tensor,
    *,
    latent: int,
    scale: float,
    splits: int | None = None,
    output: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """Attends from each query to the stored tokens of its sequence up to its position.

    Query i of work w stands at position kv_lengths[w] - queries of w + i.

    Args:
        queries: `[tokens, heads, latent + rope]` in the pool's format, where that is not quantized, contiguous,
            absorbed.
        pool: one layer, `[blocks, 1, block, latent + rope]`, or `[blocks, 1, bytes]`, contiguous.
        block_tables: `[works, width]` int32, the blocks of each work's sequence in order.
        query_start: `[works + 1]` int32, the rows of work w are query_start[w] … query_start[w + 1] - 1.
        kv_lengths: `[works]` int32, stored tokens of each sequence, this step's among them.
        latent: numbers of a latent vector.
        scale: of scores.
        splits: equal parts that the keys of each tile are cut into; by default as many as the device has processors
            for, if sequences are as long as the tables are wide.
        output: memory for the result; by default it is allocated.

    Returns `[tokens, heads, latent]`, contiguous; zeros for a work of length 0, undefined from query_start[works] on.

    Example: 5 new tokens behind 32 stored ones, and a prompt of 3; 16 heads: queries `[8, 16, 576]`, pool
    `[100, 1, 16, 576]`, block_tables `[[4, 9, 7], [2, 0, 0]]`, query_start `[0, 5, 8]`, kv_lengths `[37, 3]`, latent
    512.
    """
    shape = checked(queries, pool, block_tables, kv_lengths, latent)
    tokens, works = len(queries), len(kv_lengths)
    assert query_start.shape == (works + 1,) and query_start.is_contiguous() and query_start.dtype == torch.int32
    output = output_for(queries, latent, output)
    if not tokens:
        return output
    config = config or shape.config("latent_prefill_attention", queries.device)
    tiles = tokens * shape.heads // config.tiles["ROWS"] + works
    if splits is None:
        splits = split_count(tiles, processors(queries.device), block_tables.shape[1] * shape.block)
    assert 1 <= splits <= MAX_SPLITS
    parts, sums = parts_of(output, splits)
    memory, scales = views_of(pool)
    _attend_latents[(tiles, splits)](
        queries,
        memory,
        scales,
        block_tables,
        query_start,
        kv_lengths,
        parts,
        sums,
        tokens,
        pool.stride(0),
        block_tables.stride(0),
        works,
        **shape.options(config, scale, split=splits > 1),
    )
    if splits > 1:
        join_parts(parts, sums, output)
    return output


def output_for(queries: Tensor, latent: int, output: Tensor | None) -> Tensor:
    """Checks the `output` that a caller has given, `[tokens, heads, latent]`, or allocates one."""
    shape = (*queries.shape[:2], latent)
    if output is None:
        return queries.new_empty(shape)
    assert output.shape == shape and output.dtype == queries.dtype and output.is_contiguous()
    return output


# Arguments that change from batch to batch are not specialized: a new kernel would be compiled during a request.
@launched_directly
@triton.jit(
    do_not_specialize=["tokens", "table_stride", "works"],
    do_not_specialize_on_alignment=["block_tables", "query_start", "kv_lengths"],
)
def _attend_latents(
    queries: tl.tensor,
    pool: tl.tensor,
    scales: tl.tensor,
    block_tables: tl.tensor,
    query_start: tl.tensor,
    kv_lengths: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    tokens: tl.tensor,
    block_stride: tl.tensor,
    table_stride: tl.tensor,
    works: tl.tensor,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    LATENT_TILE: tl.constexpr,
    ROPE_TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    FORMAT: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the last see most
    work = work_of(tile, query_start, works, HEADS, ROWS)
    begin = tl.load(query_start + work)
    count = tl.load(query_start + work + 1) - begin
    first_row = (tile - begin * HEADS // ROWS - work) * ROWS
    if first_row >= count * HEADS:
        return

    length = tl.load(kv_lengths + work)
    row = first_row + tl.arange(0, ROWS)
    valid = row < count * HEADS
    query = row // HEADS
    part_row = begin.to(tl.int64) * HEADS + row
    first_part, second_part = load_queries(queries, part_row, valid, LATENT, ROPE, LATENT_TILE, ROPE_TILE)

    # The tile's last query sees nothing from `end` on.
    end = tl.minimum(length - count + (first_row + ROWS - 1) // HEADS, length - 1) + 1
    lowest_key = 0
    if SPLIT:
        part_length = tl.cdiv(tl.cdiv(end, TILE), tl.num_programs(1)) * TILE
        lowest_key += tl.program_id(1) * part_length
        end = tl.minimum(lowest_key + part_length, end)
    query_positions = length - count + query
    table = block_tables + work.to(tl.int64) * table_stride
    # All tiles are masked: a second loop without masks would cost more registers than it saves time.
    weighted, highest, total = attend_latents(
        first_part,
        second_part,
        tl.zeros([ROWS, LATENT_TILE], tl.float32),
        tl.full([ROWS], LOWEST_SCORE, tl.float32),
        tl.zeros([ROWS], tl.float32),
        lowest_key,
        end,
        query_positions,
        query_positions,
        query_positions,
        pool,
        scales,
        block_stride,
        table,
        SCALE=SCALE,
        LATENT=LATENT,
        ROPE=ROPE,
        BLOCK=BLOCK,
        FORMAT=FORMAT,
        TILE=TILE,
        STAGES=STAGES,
        TREES=False,
    )
    part_row += tl.program_id(1).to(tl.int64) * tokens * HEADS
    store_part(parts, sums, part_row, valid, weighted, highest, total, LATENT, SPLIT)


def reference(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    kv_lengths: Tensor,
    *,
    latent: int,
    scale: float,
    tree_mask: Tensor | None = None,
) -> Tensor:
    """Computes the same with torch operators, one sequence after the other, in the queries' precision.

    `tree_mask` is as in `MultiQuery`; the kernel does not support it.
    """
    output = queries.new_zeros((*queries.shape[:2], latent))
    starts = query_start.tolist()
    for work, length in enumerate(kv_lengths.tolist()):
        first, end = starts[work], starts[work + 1]
        if not length or first == end:
            continue
        blocks = block_tables[work, : -(-length // pool.shape[2])].long()
        stored = pool[blocks].flatten(0, 2)[:length]
        scores = torch.einsum("qhd,kd->hqk", queries[first:end], stored) * scale
        query_positions = torch.arange(length - (end - first), length, device=queries.device)[:, None]
        key = torch.arange(length, device=queries.device)
        hidden = key > query_positions if tree_mask is None else hidden_in_tree(key, tree_mask[:, first:end])
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        output[first:end] = torch.einsum("hqk,kd->qhd", weights, stored[:, :latent])
    return output
