"""Computes latent attention of one new query of each sequence, or of a few, absorbed, over its paged latent vectors.

    softmax(scale q [c | k]^T) c

for all heads (the steps are in latent_tiles.py). The rows of a tile are the heads of all queries of a sequence
(multi_query.py): the tile reads the sequence's KV once for all of them, and multiplies it on tensor cores. With 128
heads and vectors of 512 + 64 values there are some 240 operations to each byte, about as many as a device computes
while it reads one.

The KV of long sequences is split (split_kv.py); a second kernel joins the parts (attention_parts.py).
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import latent_prefill_attention
from kernels.attention.attention_tiles import LOWEST_SCORE
from kernels.attention.decode_launch import (
    UNALIGNED_ARGUMENTS,
    DecodeVariant,
    decode_launch,
    part_of_program,
    queries_of_sequence,
    store_decoded,
    visible_to_queries,
)
from kernels.attention.latent_tiles import CANDIDATE_CONFIGS, LatentShape, attend_latents, checked, load_queries
from kernels.attention.multi_query import MultiQuery, starts_of
from kernels.attention.split_kv import SplitPlan
from kernels.launching import Launch, launched_directly, prepared
from kernels.shape_cache import by_shape
from kernels.sizes import tile_count
from kernels.tuning import Config

__all__ = ["CANDIDATE_CONFIGS", "latent_decode_attention", "reference"]


def latent_decode_attention(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    kv_lengths: Tensor,
    *,
    latent: int,
    scale: float,
    multi_query: MultiQuery | None = None,
    split: SplitPlan | None = None,
    output: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """Attends from the newest tokens of each sequence to all of its stored tokens, including themselves.

    The device reads lengths and the split plan, so a captured graph serves any.

    Args:
        queries: `[works, heads, latent + rope]`, or `[rows, …]` with `multi_query`, absorbed, contiguous, in the
            format of the pool if that is not quantized.
        pool: one layer, `[blocks, 1, block, latent + rope]`, or `[blocks, 1, bytes]`, contiguous.
        block_tables: `[works, width]` int32, the blocks of each sequence in order.
        kv_lengths: `[works]` int32, stored tokens of each sequence; 0 for padding.
        latent: width of a latent vector.
        scale: factor of the scores.
        multi_query: the query rows of each sequence; by default it has one.
        split: split plan for these lengths; by default no sequence is split.
        output: memory for the result; by default it is allocated.

    Returns `[works, heads, latent]`, or `[rows, …]`, contiguous; zeros for a sequence of length 0. Padding rows
    stay as they are.

    Example: 2 sequences of 37 and 5 tokens in 100 blocks of 16, 128 heads: queries `[2, 128, 576]`, pool
    `[100, 1, 16, 576]`, block_tables `[[4, 9, 7], [2, 0, 0]]`, kv_lengths `[37, 5]`, latent 512.
    """
    shape = checked(queries, pool, block_tables, kv_lengths, latent)
    heads, works = queries.shape[1], len(kv_lengths)
    assert multi_query is not None or works == len(queries)
    output = latent_prefill_attention.output_for(queries, latent, output)
    if not works:
        return output
    config = config or shape.config("latent_decode_attention", queries.device)
    launch = decode_launch(queries, pool, block_tables, kv_lengths, output, multi_query, split)
    rows = heads * (1 if multi_query is None else multi_query.max_queries)
    attend = _prepared_launch(shape, config, scale, launch.variant)
    attend((tile_count(rows, config.tiles["ROWS"]), launch.programs), *launch.arguments)
    launch.finish()
    return output


@by_shape
def _prepared_launch(shape: LatentShape, config: Config, scale: float, variant: DecodeVariant) -> Launch:
    options = shape.options(config, scale, split=variant.split)
    return prepared(_attend_part, MULTI_QUERY=variant.multi_query, TREES=variant.trees, **options)


# Arguments that change from batch to batch are not specialized: a new kernel would be compiled during a request.
@launched_directly
@triton.jit(
    do_not_specialize=["table_stride", "mask_stride", "max_queries"],
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
    MULTI_QUERY: tl.constexpr,
    TREES: tl.constexpr,
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
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    program = tl.program_id(1).to(tl.int64)
    work, part, count = part_of_program(owners, starts, program, SPLIT)
    if SPLIT:  # noqa: SIM102 - a compile-time condition
        if work < 0:
            return
    length = tl.load(kv_lengths + work)
    query, head, valid = row // HEADS, row % HEADS, row < HEADS
    first_row, query_count = queries_of_sequence(row_starts, row_counts, work, MULTI_QUERY)
    if MULTI_QUERY:
        if tl.program_id(0) * ROWS >= query_count * HEADS:
            return
        valid = query < query_count
    token = first_row + query
    query_positions, seen_until, tree_bits = visible_to_queries(
        tree_mask, mask_stride, token, length - query_count + query, valid, TREES
    )
    part_length = tl.cdiv(tl.cdiv(length, TILE), count) * TILE
    first = (part * part_length).to(tl.int32)
    end = tl.minimum(first + part_length, length)
    first_part, second_part = load_queries(queries, token * HEADS + head, valid, LATENT, ROPE, LATENT_TILE, ROPE_TILE)
    weighted, highest, total = attend_latents(
        first_part,
        second_part,
        tl.zeros([ROWS, LATENT_TILE], tl.float32),
        tl.full([ROWS], LOWEST_SCORE, tl.float32),
        tl.zeros([ROWS], tl.float32),
        first,
        end,
        query_positions,
        seen_until,
        tree_bits,
        pool,
        scales,
        block_stride,
        block_tables + work * table_stride,
        SCALE=SCALE,
        LATENT=LATENT,
        ROPE=ROPE,
        BLOCK=BLOCK,
        FORMAT=FORMAT,
        TILE=TILE,
        STAGES=STAGES,
        TREES=TREES,
    )
    output_row, part_row = token * HEADS + head, (program * max_queries + query) * HEADS + head
    store_decoded(output, parts, sums, output_row, part_row, count, valid, weighted, highest, total, LATENT)


def reference(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    kv_lengths: Tensor,
    *,
    latent: int,
    scale: float,
    multi_query: MultiQuery | None = None,
) -> Tensor:
    """Computes the same with torch operators: prefill with one query per sequence, or with rows without gaps."""
    starts, tree_mask = starts_of(multi_query, len(kv_lengths), queries)
    return latent_prefill_attention.reference(
        queries, pool, block_tables, starts, kv_lengths, latent=latent, scale=scale, tree_mask=tree_mask
    )
