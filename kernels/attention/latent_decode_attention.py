"""Computes latent attention of one new query of each sequence, or of a few, absorbed, over its paged latent vectors.

    softmax(scale q [c | k]^T) c

for all heads (the steps are in latent_tiles.py). The rows of a tile are the heads of all queries of a sequence
(multi_query.py): the tile reads the sequence's KV once for all of them, and multiplies it on tensor cores. With 128
heads and vectors of 512 + 64 values there are some 240 operations to each byte, about as many as a device computes
while it reads one.

The KV of long sequences is split (split_kv.py); a second kernel joins the parts (attention_parts.py).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import latent_prefill_attention
from kernels.attention.attention_parts import join_splits, store_part
from kernels.attention.attention_tiles import LOWEST_SCORE
from kernels.attention.latent_tiles import CANDIDATE_CONFIGS, attend_latents, checked, load_queries
from kernels.attention.multi_query import UNALIGNED_ARGUMENTS, MultiQuery, starts_of
from kernels.attention.split_kv import SplitPlan
from kernels.quantized.kv_bytes import views_of
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
    few: MultiQuery | None = None,
    pieces: SplitPlan | None = None,
    output: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """Attends with the newest tokens of each sequence to all of its tokens that are stored, themselves among them.

    The device reads lengths and pieces, so a captured graph serves any.

    Args:
        queries: `[works, heads, latent + rope]`, or `[rows, …]` where there are `few`, in the pool's format, where that
            is not quantized, contiguous, absorbed.
        pool: one layer, `[blocks, 1, block, latent + rope]`, or `[blocks, 1, bytes]`, contiguous.
        block_tables: `[works, width]` int32, the blocks of each sequence in order.
        kv_lengths: `[works]` int32, stored tokens of each sequence; 0 for padding.
        latent: numbers of a latent vector.
        scale: of scores.
        few: the rows of each sequence; by default it has one.
        pieces: how sequences are cut, of the same lengths; by default each is one piece.
        output: where the result goes, as it is returned; by default it is allocated.

    Returns `[works, heads, latent]`, or `[rows, …]`, contiguous; zeros for a sequence of length 0. Rows that are
    nobody's stay as they are.

    Example: 2 sequences of 37 and 5 tokens in 100 blocks of 16, 128 heads: queries `[2, 128, 576]`, pool
    `[100, 1, 16, 576]`, block_tables `[[4, 9, 7], [2, 0, 0]]`, kv_lengths `[37, 5]`, latent 512.
    """
    shape = checked(queries, pool, block_tables, kv_lengths, latent)
    heads, works = queries.shape[1], len(kv_lengths)
    assert few is not None or works == len(queries)
    output = latent_prefill_attention.result_of(queries, latent, output)
    if not works:
        return output
    config = config or shape.config("latent_decode_attention", queries.device)
    most, row_starts, row_counts, sights = 1, kv_lengths, kv_lengths, kv_lengths  # not read
    if few is not None:
        most, row_starts, row_counts = few.most, few.starts, few.counts
        sights = sights if few.sights is None else few.sights
        assert row_starts.shape == row_counts.shape == (works,) and row_starts.dtype == row_counts.dtype == torch.int32
        assert few.sights is None or (sights.shape == (3, len(queries)) and sights.stride(1) == 1)
    count, parts, sums = works, output, output  # of one piece each: that is the result, and its log-sum-exp is not kept
    owners, starts = kv_lengths, kv_lengths  # not read
    if pieces is not None:
        owners, starts = pieces.owners, pieces.starts
        assert owners.dtype == starts.dtype == torch.int32 and starts.shape == (works + 1,)
        count = len(owners)
        parts = queries.new_empty((count * most, heads, latent), dtype=torch.float32)
        sums = parts.new_empty(parts.shape[:-1])
    memory, scales = views_of(pool)
    _attend_piece[(tile_count(heads * most, config.tiles["ROWS"]), count)](
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
        pool.stride(0),
        block_tables.stride(0),
        sights.stride(0),
        most,
        FEW=few is not None,
        TREES=few is not None and few.sights is not None,
        **shape.options(config, scale, split=pieces is not None),
    )
    if pieces is not None:
        join_splits(parts, sums, starts, output, few)
    return output


# What changes from batch to batch is not specialized on: that would compile another kernel while a request waits.
@triton.jit(
    do_not_specialize=["table_stride", "sight_stride", "most"],
    do_not_specialize_on_alignment=UNALIGNED_ARGUMENTS,
)
def _attend_piece(
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
    block_stride: tl.tensor,
    table_stride: tl.tensor,
    sight_stride: tl.tensor,
    most: tl.tensor,
    FEW: tl.constexpr,
    TREES: tl.constexpr,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    LATENT_TILE: tl.constexpr,
    ROPE_TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    FORM: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    piece = tl.program_id(1).to(tl.int64)
    work, part, count = piece, 0, 1
    if SPLIT:
        work = tl.load(owners + piece).to(tl.int64)
        if work < 0:
            return
        begin = tl.load(starts + work)
        part = piece - begin
        count = tl.load(starts + work + 1) - begin
    length = tl.load(kv_lengths + work)
    query, head, kept = row // HEADS, row % HEADS, row < HEADS
    begin_row, queries_of = work, 1
    if FEW:
        begin_row = tl.load(row_starts + work).to(tl.int64)
        queries_of = tl.load(row_counts + work)
        if tl.program_id(0) * ROWS >= queries_of * HEADS:
            return
        kept = query < queries_of
    token = begin_row + query
    at = length - queries_of + query
    lasts, bits = at, at
    if TREES:
        lasts = tl.load(sights + sight_stride + token, mask=kept, other=0)
        bits = tl.load(sights + 2 * sight_stride + token, mask=kept, other=0)
    each = tl.cdiv(tl.cdiv(length, TILE), count) * TILE
    first = (part * each).to(tl.int32)
    end = tl.minimum(first + each, length)
    first_part, second_part = load_queries(queries, token * HEADS + head, kept, LATENT, ROPE, LATENT_TILE, ROPE_TILE)
    weighted, highest, total = attend_latents(
        first_part,
        second_part,
        tl.zeros([ROWS, LATENT_TILE], tl.float32),
        tl.full([ROWS], LOWEST_SCORE, tl.float32),
        tl.zeros([ROWS], tl.float32),
        first,
        end,
        at,
        lasts,
        bits,
        pool,
        scales,
        block_stride,
        block_tables + work * table_stride,
        SCALE=SCALE,
        LATENT=LATENT,
        ROPE=ROPE,
        BLOCK=BLOCK,
        FORM=FORM,
        TILE=TILE,
        STAGES=STAGES,
        TREES=TREES,
    )
    if count > 1:
        store_part(parts, sums, (piece * most + query) * HEADS + head, kept, weighted, highest, total, LATENT, True)
    else:
        store_part(output, sums, token * HEADS + head, kept, weighted, highest, total, LATENT, False)


def reference(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    kv_lengths: Tensor,
    *,
    latent: int,
    scale: float,
    few: MultiQuery | None = None,
) -> Tensor:
    """Computes the same by torch's operators: prefill's, with one query in each work, or rows that have no gaps."""
    starts, sights = starts_of(few, len(kv_lengths), queries)
    return latent_prefill_attention.reference(
        queries, pool, block_tables, starts, kv_lengths, latent=latent, scale=scale, sights=sights
    )
