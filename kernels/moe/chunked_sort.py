"""Sorts many pairs by expert in two launches: chunks of pairs count in parallel, then each chunk places its own pairs.

    row of pair i = first row of its expert + its expert's pairs in earlier chunks + those before i in its chunk

The first launch stores how many pairs each chunk has of each expert. In the second one every program sums that table:
a program of a chunk learns where its pairs begin, and counts the equal experts before each of them, in a piece of its
chunk; further programs, one for each expert, write the padding and the tiles' owners. In a launch of one program for
each expert (sort_by_expert.py), every program reads all pairs twice, which takes longer beyond a few thousand. No
atomics are used.

An estimate for 8,192 tokens with 8 of 128 experts on an H100 (132 processors, 1.755 GHz, 4 warps a program) from the
compiled instructions of a warp, at the issue share of pricing/roofline/gpu_step_time.py, 0.6; a processor runs a
program of a chunk beside one of an expert. A trip is a load that the next step waits for, of 700 clocks:

    _count    4 trips, 4 x 75 instructions                                   1.9 us
    _place    table: 128 + 128 programs read 64 KiB, at 4 TB/s (L2 cache)    4.2 us, its 4 trips behind them
              a chunk: table 696, sums 265, pieces 4 x 636                   3.3 us
              an expert: table 696, sums and stores 415                      1.1 us
              8 trips to keys and begins, 20 barriers of 50 clocks           3.8 us
    launches  2 x 1 us                                                       2.0 us

Together 16 us: nothing is assumed to overlap. All in one launch takes 64 x (629 + 248) instructions: some 120 us.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.sizes import power_of_two, tile_count
from kernels.tuning import Config

TABLE_TILE = 4096
"""Numbers of the table that a program loads at once."""
PIECES_PER_CHUNK = 4
"""Parts of a chunk: a pair is compared with the pairs of its own part; earlier parts are counted as a whole."""
COMPARED_TOGETHER = 16


def sort_chunks(chosen: Tensor, pairs: Tensor, owners: Tensor, *, experts: int, rows: int, config: Config) -> None:
    """Writes the `pairs` and `owners` of tiles of `rows` rows (sort_by_expert.py) for `chosen`, int32, contiguous.

    The config's `CHUNK` is the pairs of a chunk.
    """
    bins, options = power_of_two(experts), config.options()
    chunks = tile_count(chosen.numel(), options["CHUNK"])
    piece = max(COMPARED_TOGETHER, options["CHUNK"] // PIECES_PER_CHUNK)
    keys = chosen.new_empty(chunks * options["CHUNK"])
    counts = chosen.new_empty((2, chunks, bins))  # and the row where each chunk's pairs of each expert begin
    before = chosen.new_empty((keys.numel() // piece, bins))  # a piece, in its chunk
    sizes = {"EXPERTS": experts, "BINS": bins, "PIECE": piece, **options}
    _count[(chunks,)](chosen, keys, counts, before, chosen.numel(), **sizes)
    _place[(chunks + experts,)](
        keys,
        counts,
        before,
        pairs,
        owners,
        owners.shape[0],
        chunks,
        ROWS=rows,
        PART=max(1, TABLE_TILE // bins),
        TOGETHER=COMPARED_TOGETHER,
        **sizes,
    )


@launched_directly
@triton.jit(do_not_specialize=["count"])
def _count(
    chosen: tl.tensor,
    keys: tl.tensor,
    counts: tl.tensor,
    before: tl.tensor,
    count: tl.tensor,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    PIECE: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    chunk = tl.program_id(0)
    lane = tl.arange(0, PIECE)
    bins = tl.arange(0, BINS)
    counted = tl.zeros([BINS], tl.int32)
    for start in range(chunk * CHUNK, (chunk + 1) * CHUNK, PIECE):
        owner = tl.load(chosen + start + lane, mask=start + lane < count, other=EXPERTS)
        tl.store(keys + start + lane, owner * PIECE + lane)
        tl.store(before + start // PIECE * BINS + bins, counted)
        left_out = tl.sum((owner == EXPERTS).to(tl.int32), 0)  # padding and pairs of no expert, as if of expert 0
        counted += tl.histogram(tl.where(owner == EXPERTS, 0, owner), BINS) - tl.where(bins == 0, left_out, 0)
    tl.store(counts + chunk * BINS + bins, counted)


# Both change with the batch: another kernel would be compiled while a request waits.
@launched_directly
@triton.jit(do_not_specialize=["tiles", "chunks"])
def _place(
    keys: tl.tensor,
    counts: tl.tensor,
    before: tl.tensor,
    pairs: tl.tensor,
    owners: tl.tensor,
    tiles: tl.tensor,
    chunks: tl.tensor,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    ROWS: tl.constexpr,
    PART: tl.constexpr,
    TOGETHER: tl.constexpr,
    PIECE: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    bins = tl.arange(0, BINS)
    totals = tl.zeros([PART, BINS], tl.int32)
    earlier = tl.zeros([PART, BINS], tl.int32)
    for start in range(0, chunks, PART):
        chunk = (start + tl.arange(0, PART))[:, None]
        of_chunks = tl.load(counts + chunk * BINS + bins[None, :], mask=chunk < chunks, other=0)
        totals += of_chunks
        earlier += tl.where(chunk < program, of_chunks, 0)
    total = tl.sum(totals, 0)
    needed = tl.cdiv(total, ROWS)

    if program < chunks:
        begins = counts + (chunks + program) * BINS
        tl.store(begins + bins, (tl.cumsum(needed, 0) - needed) * ROWS + tl.sum(earlier, 0))
        tl.debug_barrier()  # each pair reads its expert's first row, which another warp may have stored
        piece_lane = tl.arange(0, PIECE)
        for first in range(program * CHUNK, (program + 1) * CHUNK, PIECE):
            pair = first + piece_lane
            key = tl.load(keys + pair)
            rank = tl.zeros([PIECE], tl.int32)
            for start in range(0, PIECE, TOGETHER):
                theirs = tl.load(keys + first + start + tl.arange(0, TOGETHER))
                # An equal expert's key is smaller by 1 … its lane, if it comes before; all others by less or more.
                behind = (key[None, :] - 1 - theirs[:, None]).to(tl.uint32, bitcast=True)
                rank += tl.sum((behind < piece_lane[None, :].to(tl.uint32)).to(tl.int32), 0)
            owner = key // PIECE
            valid = owner < EXPERTS
            row = tl.load(begins + owner, mask=valid, other=0)
            row += tl.load(before + first // PIECE * BINS + owner, mask=valid, other=0) + rank
            tl.store(pairs + row, pair, mask=valid)
    else:
        expert = program - chunks
        begin = tl.sum(tl.where(bins < expert, needed, 0))
        end = begin + tl.sum(tl.where(bins == expert, needed, 0))
        padding = begin * ROWS + tl.sum(tl.where(bins == expert, total, 0)) + tl.arange(0, ROWS)
        tl.store(pairs + padding, tl.full([ROWS], -1, tl.int32), mask=padding < end * ROWS)
        lane = tl.arange(0, CHUNK)
        for start in range(begin, end, CHUNK):
            tl.store(owners + start + lane, tl.zeros([CHUNK], tl.int32) + expert, mask=start + lane < end)
        if expert == EXPERTS - 1:
            for start in range(end, tiles, CHUNK):
                tl.store(owners + start + lane, tl.full([CHUNK], -1, tl.int32), mask=start + lane < tiles)
