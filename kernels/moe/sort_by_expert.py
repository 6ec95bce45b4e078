"""Sorts pairs of a token and a chosen expert by expert, into tiles of one expert each.

    tiles = (pairs + min(experts, pairs) x (rows - 1)) / rows

is the maximum number of tiles of `rows` rows for any choice: an expert has ceil(its pairs / rows). The host therefore
knows the sizes of all later operators without waiting for the choice, and a recorded step serves every choice. Surplus
tiles are unused. (Megablocks sorts alike: Gale et al., 2022, https://arxiv.org/abs/2211.15841.)

A program takes one expert. Each program counts all experts' pairs, to know where its tiles begin without communication;
then it writes the numbers of its own pairs, in their order. That is two passes over a few numbers in the cache, in one
launch. Many pairs are sorted in chunks instead (chunked_sort.py). No atomics are used: the same input gives the same
tiles.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.moe.chunked_sort import sort_chunks
from kernels.sizes import power_of_two, tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"CHUNK": 1024}, warps=4),
    Config({"CHUNK": 2048}, warps=8),
    Config({"CHUNK": 512}, warps=2),
    Config({"CHUNK": 512}, warps=4),
    Config({"CHUNK": 1024}, warps=8),
)
"""The first is the default of few pairs, the last but one that of many."""
MAX_PAIRS_AT_ONCE = 4096
"""Maximum pairs that every program reads, in one launch: beyond, two launches take less time."""

NO_PAIR = -1
"""Pair of a padding row, and expert of an unused tile."""


@dataclass(frozen=True)
class Tiles:
    """Pairs as tiles of `rows` rows; pair t * used + i is of token t's i-th expert."""

    pairs: Tensor  # [tiles x rows] int32, `NO_PAIR` behind an expert's last one; undefined in unused tiles
    owners: Tensor  # [tiles] int32, the expert of each tile, `NO_PAIR` behind the last
    rows: int


def max_tiles(pairs: int, experts: int, rows: int) -> int:
    return (pairs + min(experts, pairs) * (rows - 1)) // rows


def sort_by_expert(chosen: Tensor, experts: int, rows: int, *, config: Config | None = None) -> Tiles:
    """Sorts pairs by their experts.

    Args:
        chosen: `[tokens, used]` int32, 0 … experts - 1, contiguous; pairs of the number `experts` are left out.
        experts: how many there are.
        rows: of a tile.

    Example: chosen `[[2, 0], [2, 1]]` of 4 experts, tiles of 2 rows: pairs `[1, -1, 3, -1, 0, 2]` and owners
    `[0, 1, 2]`.
    """
    assert chosen.dtype == torch.int32 and chosen.is_contiguous()
    count = max_tiles(chosen.numel(), experts, rows)
    pairs, owners = chosen.new_empty(count * rows), chosen.new_empty(count)
    many = chosen.numel() > MAX_PAIRS_AT_ONCE
    if count and config is None:
        shape = f"experts={experts}" + ",many" * many
        config = tuned("sort_by_expert", shape, chosen.device, CANDIDATE_CONFIGS[-2 if many else 0])
    if config is not None and many:
        sort_chunks(chosen, pairs, owners, experts=experts, rows=rows, config=config)
    elif config is not None and count:
        _sort[(experts,)](
            chosen,
            pairs,
            owners,
            chosen.numel(),
            count,
            EXPERTS=experts,
            BINS=power_of_two(experts + 1),
            ROWS=rows,
            **config.options(),
        )
    return Tiles(pairs, owners, rows)


# Both change with the batch: another kernel would be compiled while a request waits.
@launched_directly
@triton.jit(do_not_specialize=["count", "tiles"])
def _sort(
    chosen: tl.tensor,
    pairs: tl.tensor,
    owners: tl.tensor,
    count: tl.tensor,
    tiles: tl.tensor,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    expert = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    counts = tl.zeros([BINS], tl.int32)
    for start in range(0, count, CHUNK):
        # Padding elements are counted in an additional bin after the experts.
        owner = tl.load(chosen + start + lane, mask=start + lane < count, other=EXPERTS)
        counts += tl.histogram(owner, BINS)
    bins = tl.arange(0, BINS)
    needed = tl.where(bins < EXPERTS, tl.cdiv(counts, ROWS), 0)
    begin = tl.sum(tl.where(bins < expert, needed, 0))
    end = begin + tl.sum(tl.where(bins == expert, needed, 0))

    first_row = begin * ROWS
    for start in range(0, count, CHUNK):
        owner = tl.load(chosen + start + lane, mask=start + lane < count, other=EXPERTS)
        is_own = (owner == expert).to(tl.int32)
        tl.store(pairs + first_row + tl.cumsum(is_own, 0) - 1, start + lane, mask=is_own > 0)
        first_row += tl.sum(is_own)
    row = tl.arange(0, ROWS)
    tl.store(pairs + first_row + row, tl.full([ROWS], -1, tl.int32), mask=first_row + row < end * ROWS)
    for start in range(begin, end, CHUNK):
        tl.store(owners + start + lane, tl.zeros([CHUNK], tl.int32) + expert, mask=start + lane < end)
    if expert == EXPERTS - 1:
        for start in range(end, tiles, CHUNK):
            tl.store(owners + start + lane, tl.full([CHUNK], -1, tl.int32), mask=start + lane < tiles)


def reference(chosen: Tensor, experts: int, rows: int) -> Tiles:
    """Computes the same with torch operators; pairs of unused tiles are `NO_PAIR`."""
    count = max_tiles(chosen.numel(), experts, rows)
    pairs, owners = chosen.new_full((count * rows,), NO_PAIR), chosen.new_full((count,), NO_PAIR)
    tile = 0
    for expert in range(experts):
        own = (chosen.flatten() == expert).nonzero().flatten().int()
        pairs[tile * rows : tile * rows + len(own)] = own
        needed = tile_count(len(own), rows)
        owners[tile : tile + needed] = expert
        tile += needed
    return Tiles(pairs, owners, rows)
