"""Computes latent attention of one new query of each sequence, absorbed, over its paged latent vectors.

    softmax(scale q [c | k]^T) c

for all heads (the steps are in latent_tiles.py). Heads are the rows of a tile, so that what a sequence has stored is
read once for as many of them as a tile has, and then multiplied on tensor cores: with 128 heads and vectors of 512 + 64
numbers there are some 240 operations to each byte, about what a device does while it reads one.

Sequences are cut into pieces (decode_pieces.py), which a second kernel joins (attention_parts.py).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import latent_prefill_attention
from kernels.attention.attention_parts import join_pieces, store_part
from kernels.attention.attention_tiles import LOWEST
from kernels.attention.decode_pieces import Pieces
from kernels.attention.latent_tiles import CONFIGS, attend_latents, checked, load_queries
from kernels.quantized.kv_bytes import views_of
from kernels.sizes import tile_count
from kernels.tuning import Config

__all__ = ["CANDIDATES", "latent_decode_attention", "reference"]

CANDIDATES = CONFIGS


def latent_decode_attention(
    queries: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    kv_lengths: Tensor,
    *,
    latent: int,
    scale: float,
    pieces: Pieces | None = None,
    output: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """Attends with the newest token of each sequence to all of its tokens that are stored, itself among them.

    The device reads lengths and pieces, so a captured graph serves any.

    Args:
        queries: `[works, heads, latent + rope]` in the pool's format, where that is not quantized, contiguous,
            absorbed.
        pool: one layer, `[blocks, 1, block, latent + rope]`, or `[blocks, 1, bytes]`, contiguous.
        block_tables: `[works, width]` int32, the blocks of each sequence in order.
        kv_lengths: `[works]` int32, stored tokens of each sequence; 0 for padding.
        latent: numbers of a latent vector.
        scale: of scores.
        pieces: how sequences are cut, of the same lengths; by default each is one piece.
        output: where the result goes, as it is returned; by default it is allocated.

    Returns `[works, heads, latent]`, contiguous; zeros for a sequence of length 0.

    Example: 2 sequences of 37 and 5 tokens in 100 blocks of 16, 128 heads: queries `[2, 128, 576]`, pool
    `[100, 1, 16, 576]`, block_tables `[[4, 9, 7], [2, 0, 0]]`, kv_lengths `[37, 5]`, latent 512.
    """
    shape = checked(queries, pool, block_tables, kv_lengths, latent)
    works, heads = queries.shape[:2]
    assert works == len(kv_lengths)
    output = latent_prefill_attention.result_of(queries, latent, output)
    if not works:
        return output
    config = config or shape.config("latent_decode_attention", queries.device)
    count, parts, sums = works, output, output  # of one piece each: that is the result, and its log-sum-exp is not kept
    owners, starts = kv_lengths, kv_lengths  # not read
    if pieces is not None:
        owners, starts = pieces.owners, pieces.starts
        assert owners.dtype == starts.dtype == torch.int32 and starts.shape == (works + 1,)
        count = len(owners)
        parts = queries.new_empty((count, heads, latent), dtype=torch.float32)
        sums = parts.new_empty(parts.shape[:-1])
    memory, scales = views_of(pool)
    _attend_piece[(tile_count(heads, config.tiles["ROWS"]), count)](
        queries,
        memory,
        scales,
        block_tables,
        kv_lengths,
        owners,
        starts,
        output,
        parts,
        sums,
        pool.stride(0),
        block_tables.stride(0),
        **shape.options(config, scale, split=pieces is not None),
    )
    if pieces is not None:
        join_pieces(parts, sums, starts, output)
    return output


# What changes from batch to batch is not specialized on: that would compile another kernel while a request waits.
@triton.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["block_tables", "kv_lengths", "owners", "starts"],
)
def _attend_piece(
    queries: tl.tensor,
    pool: tl.tensor,
    scales: tl.tensor,
    block_tables: tl.tensor,
    kv_lengths: tl.tensor,
    owners: tl.tensor,
    starts: tl.tensor,
    output: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    block_stride: tl.tensor,
    table_stride: tl.tensor,
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
    head = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    kept = head < HEADS
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
    each = tl.cdiv(tl.cdiv(length, TILE), count) * TILE
    first = (part * each).to(tl.int32)
    end = tl.minimum(first + each, length)
    first_part, second_part = load_queries(queries, work * HEADS + head, kept, LATENT, ROPE, LATENT_TILE, ROPE_TILE)
    weighted, highest, total = attend_latents(
        first_part,
        second_part,
        tl.zeros([ROWS, LATENT_TILE], tl.float32),
        tl.full([ROWS], LOWEST, tl.float32),
        tl.zeros([ROWS], tl.float32),
        first,
        end,
        tl.full([ROWS], length - 1, tl.int32),
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
    )
    if count > 1:
        store_part(parts, sums, piece * HEADS + head, kept, weighted, highest, total, LATENT, True)
    else:
        store_part(output, sums, work * HEADS + head, kept, weighted, highest, total, LATENT, False)


def reference(
    queries: Tensor, pool: Tensor, block_tables: Tensor, kv_lengths: Tensor, *, latent: int, scale: float
) -> Tensor:
    """Computes the same by torch's operators: prefill's, with one query in each work."""
    starts = torch.arange(len(kv_lengths) + 1, device=queries.device, dtype=torch.int32)
    return latent_prefill_attention.reference(
        queries, pool, block_tables, starts, kv_lengths, latent=latent, scale=scale
    )
