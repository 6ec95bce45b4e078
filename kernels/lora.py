"""Adds adapters' changes to the outputs of a linear layer, for the rows of a step with one adapter each, or none.

    y[t] += B_s (A_s x[t])      for row t with the adapter in slot s > 0

(LoRA: Hu et al., 2021, https://arxiv.org/abs/2106.09685; rows of several adapters in one launch: Punica, Chen et al.,
2023, https://arxiv.org/abs/2310.18547; S-LoRA, Sheng et al., 2023, https://arxiv.org/abs/2311.03285.) One launch
shrinks rows to their adapters' ranks, a second one expands them into the parts of the outputs, for decodes and chunks
of prompts alike. Rows come sorted into tiles of one adapter each (moe/sort_by_expert.py): a step sorts them once for
all layers. The addresses of an adapter's matrices are data in a table on the device, so both launches can be recorded
while adapters change.

A program shrinks a tile to some of the ranks, over a part of the inputs where tiles are too few to fill the device.
Sums are fp32; 16-bit outputs expand the two 16-bit halves of a sum, since tensor cores multiply no wider numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device import processors
from kernels.launching import Launch, launched_directly, prepared
from kernels.moe.sort_by_expert import Tiles, sort_by_expert
from kernels.shape_cache import by_shape
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"RANKS": 16, "DEPTH": 128, "OUTPUTS": 128}, warps=4, stages=4),
    Config({"RANKS": 16, "DEPTH": 256, "OUTPUTS": 128}, warps=4, stages=3),
    Config({"RANKS": 32, "DEPTH": 128, "OUTPUTS": 256}, warps=4, stages=3),
    Config({"RANKS": 16, "DEPTH": 64, "OUTPUTS": 128}, warps=4, stages=2),
)
"""The first is the default, the last that of fp32. Sizes of tiles: of ranks and inputs that shrink, and of outputs."""
WORDS_PER_MATRIX = 5
"""Table words of a matrix: address, first rank, ranks, first output, outputs; all 0 for no matrix."""
FEW_ROWS, MANY_ROWS = 16, 64
"""Rows of a tile: the fewest that tensor cores take, and as many as read an adapter's matrices seldom."""
MAX_SPLITS = 8
RANKS_TOGETHER = 16
ALIGNED_OUTPUTS = 8
"""Outputs in 16 bytes, of 16 bits each: parts of multiples of it are read as whole words."""


@dataclass(frozen=True)
class AdaptedRows:
    """A step's rows, sorted by adapter, and memory that each layer shrinks them into."""

    tiles: Tiles  # of rows in slots; `owners` that are not above 0 have no adapter
    shrunk: Tensor  # fp32 [splits, tiles x rows, widest]


def tile_rows(rows: int, adapters: int) -> int:
    """Returns the rows of a tile, given all rows of a step and the number of their adapters."""
    return MANY_ROWS if rows >= MANY_ROWS * adapters else FEW_ROWS


def adapted_rows(tiles: Tiles, widest: int) -> AdaptedRows:
    """Allocates the memory; `widest`: maximum ranks of an adapter, over all its parts together."""
    count = len(tiles.owners)
    splits = max(1, min(MAX_SPLITS, processors(tiles.owners.device) // max(count, 1)))
    shape = splits, count * tiles.rows, tile_count(widest, RANKS_TOGETHER) * RANKS_TOGETHER
    return AdaptedRows(tiles, torch.empty(shape, dtype=torch.float32, device=tiles.owners.device))


def sorted_rows(slots: Tensor, max_adapters: int, widest: int) -> AdaptedRows:
    """Sorts rows on the device by int `slots` `[rows]`, 0 … `max_adapters`, 0: none."""
    return adapted_rows(sort_by_expert(slots.int(), max_adapters + 1, FEW_ROWS), widest)


def adapt(
    x: Tensor, y: Tensor, rows: AdaptedRows, table: Tensor, parts: Sequence[int], *, config: Config | None = None
) -> None:
    """Adds to `y` `[rows, outputs]` the adapters' changes for `x` `[rows, inputs]`.

    Both are fp32, bf16 or fp16, contiguous. `table` int64 `[slots + 1, 1 + parts or more, WORDS_PER_MATRIX]` has the
    address of a slot's A, `[ranks, inputs]`, and of each part's B, `[its ranks, its outputs]`, all of the format of x,
    contiguous, at multiples of 16 bytes. `parts` are the outputs of each part; parts lie side by side.

    Example: x `[32, 4096]`, y `[32, 6144]`, parts of 4096, 1024 and 1024 outputs.
    """
    tiles, shrunk = rows.tiles, rows.shrunk
    count, inputs, outputs = tiles.owners.shape[0], x.shape[1], y.shape[1]
    assert x.is_contiguous() and y.is_contiguous() and x.shape[0] == y.shape[0] and x.dtype == y.dtype
    assert (
        outputs == sum(parts)
        and table.shape[1] > len(parts)
        and table.shape[2] == WORDS_PER_MATRIX
        and table.is_contiguous()
    )
    if not count:
        return
    launches = _launches_of(x.dtype, inputs, tuple(parts), table.shape[1], tiles.rows, x.device, config)
    splits, padded, widest = shrunk.shape
    shared = table, tiles.pairs, tiles.owners, shrunk
    launches.shrink((count, tile_count(widest, launches.ranks), splits), x, *shared, inputs, padded, widest)
    grid = count, tile_count(max(parts), launches.outputs), len(parts)
    launches.expand(grid, y, *shared, outputs, padded, widest, splits)


class _Launches(NamedTuple):
    """Both launches, and their sizes of tiles."""

    shrink: Launch
    expand: Launch
    ranks: int
    outputs: int


@by_shape
def _launches_of(
    dtype: torch.dtype,
    inputs: int,
    parts: tuple[int, ...],
    matrices: int,
    rows: int,
    device: torch.device,
    config: Config | None,
) -> _Launches:
    name = f"{str(dtype).removeprefix('torch.')},inputs={inputs},outputs={sum(parts)}"
    default = CANDIDATE_CONFIGS[-1 if dtype == torch.float32 else 0]
    options = (config or tuned("lora", name, device, default)).options()
    tile, depth, ranks = (options.pop(size) for size in ("OUTPUTS", "DEPTH", "RANKS"))
    sizes = options | {"ENTRY": matrices * WORDS_PER_MATRIX, "ROWS": rows, "RANKS": ranks}
    aligned = not any(size % ALIGNED_OUTPUTS for size in parts)
    shrink = prepared(_shrink, DEPTH=depth, EVEN=not inputs % depth, **sizes)
    expand = prepared(_expand, WORDS=WORDS_PER_MATRIX, OUTPUTS=tile, ALIGNED=aligned, **sizes)
    return _Launches(shrink, expand, ranks, tile)


@launched_directly
@triton.jit
def _shrink(
    x: tl.tensor,
    table: tl.tensor,
    rows: tl.tensor,
    owners: tl.tensor,
    shrunk: tl.tensor,
    inputs: tl.tensor,
    padded: tl.tensor,
    widest: tl.tensor,
    ENTRY: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
) -> None:
    tile = tl.program_id(0)
    owner = tl.load(owners + tile).to(tl.int64)
    if owner <= 0:
        return
    entry = table + owner * ENTRY
    ranks = tl.load(entry + 2)  # 0 if the adapter does not change this layer
    rank = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    if tl.program_id(1) * RANKS >= ranks:
        return

    a = tl.multiple_of(tl.load(entry).to(x.dtype), 16)
    row = tl.load(rows + tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    depth = tl.arange(0, DEPTH)
    # Padding rows of a tile read row 0, ranks behind the last read rank 0, and neither result is used.
    x_rows = x + (tl.where(row >= 0, row, 0) * inputs)[:, None] + depth[None, :]
    a_rows = a + (tl.where(rank < ranks, rank, 0) * inputs)[None, :] + depth[:, None]
    part_inputs = tl.cdiv(tl.cdiv(inputs, DEPTH), tl.num_programs(2)) * DEPTH
    begin = tl.program_id(2) * part_inputs
    total = tl.zeros([ROWS, RANKS], tl.float32)
    for start in range(begin, tl.minimum(begin + part_inputs, inputs), DEPTH):
        if EVEN:
            values = tl.load(x_rows + start)
            factors = tl.load(a_rows + start)
        else:
            values = tl.load(x_rows + start, mask=(start + depth < inputs)[None, :], other=0.0)
            factors = tl.load(a_rows + start, mask=(start + depth < inputs)[:, None], other=0.0)
        total = tl.dot(values, factors, total, input_precision="ieee")
    shrunk_row = tl.program_id(2).to(tl.int64) * padded + tile * ROWS + tl.arange(0, ROWS)
    tl.store(shrunk + shrunk_row[:, None] * widest + rank[None, :], total, mask=(rank < ranks)[None, :])


# The number of splits follows the batch: another kernel would be compiled during a request.
@launched_directly
@triton.jit(do_not_specialize=["splits"])
def _expand(
    y: tl.tensor,
    table: tl.tensor,
    rows: tl.tensor,
    owners: tl.tensor,
    shrunk: tl.tensor,
    outputs: tl.tensor,
    padded: tl.tensor,
    widest: tl.tensor,
    splits: tl.tensor,
    ENTRY: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ALIGNED: tl.constexpr,
) -> None:
    tile, part = tl.program_id(0), tl.program_id(2)
    owner = tl.load(owners + tile).to(tl.int64)
    if owner <= 0:
        return
    entry = table + owner * ENTRY + (1 + part) * WORDS
    ranks, first, size = tl.load(entry + 2), tl.load(entry + 3), tl.load(entry + 4)
    if (ranks == 0) | (tl.program_id(1) * OUTPUTS >= size):
        return

    if ALIGNED:
        first, size = tl.multiple_of(first, 8), tl.multiple_of(size, 8)
    column = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = (column < size)[None, :]
    b = tl.multiple_of(tl.load(entry).to(y.dtype), 16)
    sorted_row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    shrunk_rows = shrunk + (sorted_row * widest + tl.load(entry + 1))[:, None]
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, ranks, RANKS):
        rank = start + tl.arange(0, RANKS)
        is_rank = rank < ranks
        sums = tl.zeros([ROWS, RANKS], tl.float32)
        summands = shrunk_rows + rank[None, :]
        for _ in range(0, splits):
            sums += tl.load(summands, mask=is_rank[None, :], other=0.0)
            summands += padded * widest
        factors = tl.load(b + rank[:, None] * size + column[None, :], mask=is_rank[:, None] & is_output, other=0.0)
        if y.dtype.element_ty == tl.float32:
            total = tl.dot(sums, factors, total, input_precision="ieee")
        else:
            high = sums.to(factors.dtype)
            total = tl.dot(high, factors, total)
            total = tl.dot((sums - high.to(tl.float32)).to(factors.dtype), factors, total)
    row = tl.load(rows + sorted_row).to(tl.int64)
    changed = y + (row * outputs + first)[:, None] + column[None, :]
    valid = (row >= 0)[:, None] & is_output
    before = tl.load(changed, mask=valid, other=0.0).to(tl.float32)
    tl.store(changed, (before + total).to(y.dtype.element_ty), mask=valid)


def reference(
    x: Tensor, y: Tensor, slots: Tensor, adapters: dict[int, tuple[Tensor, list[tuple[int, int, Tensor]]]]
) -> Tensor:
    """Computes the same with PyTorch operators, in fp32, or in fp64 for fp64 tensors: returns the new `y`.

    `adapters` are by slot A, and of each part its first output, its first rank and its B.
    """
    wide = torch.promote_types(y.dtype, torch.float32)
    changed = y.to(wide)
    for row, slot in enumerate(slots.tolist()):
        if slot in adapters:
            a, parts = adapters[slot]
            shrunk = a.to(wide) @ x[row].to(wide)
            for first, rank_first, b in parts:
                rank, size = b.shape
                changed[row, first : first + size] += shrunk[rank_first : rank_first + rank] @ b.to(wide)
    return changed.to(y.dtype)
