"""Adds adapters' changes to the outputs of a linear layer, for a few rows with one adapter each, or none.

    y[t] += B_s (A_s x[t])      for row t with the adapter in slot s > 0

(LoRA: Hu et al., 2021, https://arxiv.org/abs/2106.09685; rows of several adapters in one launch: Punica, Chen et al.,
2023, https://arxiv.org/abs/2310.18547.) One launch shrinks each row to its adapter's ranks, a second one expands them
into the parts of the outputs. The addresses of an adapter's matrices are data in a table on the device, so both
launches can be recorded while adapters change. Each row reads its adapter separately: that suits decodes, where all
rows but the first find their adapter in the cache; chunks of prompts use matrix products. Sums are fp32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"RANKS": 16, "DEPTH": 128, "OUTPUTS": 128}, warps=4),
    Config({"RANKS": 16, "DEPTH": 256, "OUTPUTS": 128}, warps=4),
    Config({"RANKS": 16, "DEPTH": 512, "OUTPUTS": 256}, warps=8),
)
"""The first is the default. Sizes of tiles: of ranks and inputs that shrink, and of outputs."""
WORDS_PER_MATRIX = 5
"""Table words of a matrix: address, first rank, ranks, first output, outputs; all 0 for no matrix."""


def adapt(x: Tensor, y: Tensor, slots: Tensor, table: Tensor, widest: int, *, config: Config | None = None) -> None:
    """Adds to `y` `[rows, outputs]` the adapters' changes for `x` `[rows, inputs]`, by int64 `slots` `[rows]`, 0: none.

    All are fp32, bf16 or fp16, with contiguous rows. `table` int64 `[slots + 1, 1 + parts, WORDS_PER_MATRIX]` has the
    address of a slot's A, `[ranks, inputs]`, and of each part's B, `[its ranks, its outputs]`, all of the format of x.
    `widest`: maximum ranks of an adapter, over all its parts together.

    Example: x `[32, 4096]`, y `[32, 6144]`, parts of 4096, 1024 and 1024 outputs, each of rank 16: `widest` 48 or more.
    """
    rows, inputs = x.shape
    parts = table.shape[1] - 1
    assert x.is_contiguous() and y.is_contiguous() and len(y) == len(slots) == rows and slots.dtype == torch.int64
    assert table.shape[2] == WORDS_PER_MATRIX and table.is_contiguous()
    name = f"{str(x.dtype).removeprefix('torch.')},inputs={inputs},outputs={y.shape[1]}"
    options = (config or tuned("lora", name, x.device, CANDIDATE_CONFIGS[0])).options()
    outputs, depth, ranks = (options.pop(size) for size in ("OUTPUTS", "DEPTH", "RANKS"))
    shrunk = torch.empty((rows, widest), dtype=torch.float32, device=x.device)
    _shrink[rows, tile_count(widest, ranks)](
        x,
        slots,
        table,
        shrunk,
        inputs,
        widest,
        ENTRY=(1 + parts) * WORDS_PER_MATRIX,
        WORDS=WORDS_PER_MATRIX,
        RANKS=ranks,
        DEPTH=depth,
        **options,
    )
    _expand[rows, tile_count(y.shape[1], outputs), parts](
        y,
        slots,
        table,
        shrunk,
        y.shape[1],
        widest,
        ENTRY=(1 + parts) * WORDS_PER_MATRIX,
        WORDS=WORDS_PER_MATRIX,
        OUTPUTS=outputs,
        **options,
    )


@launched_directly
@triton.jit
def _shrink(
    x: tl.tensor,
    slots: tl.tensor,
    words: tl.tensor,
    shrunk: tl.tensor,
    inputs: tl.tensor,
    widest: tl.tensor,
    ENTRY: tl.constexpr,
    WORDS: tl.constexpr,
    RANKS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    entry = words + slot * ENTRY
    ranks = tl.load(entry + 2)  # 0 in slot 0, and if the adapter does not change this layer
    rank = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    if tl.program_id(1) * RANKS < ranks:
        a = tl.load(entry).to(x.dtype)
        total = tl.zeros((RANKS,), tl.float32)
        for begin in range(0, inputs, DEPTH):
            place = begin + tl.arange(0, DEPTH)
            own = tl.load(x + row * inputs + place, mask=place < inputs, other=0.0).to(tl.float32)
            inside = (rank < ranks)[:, None] & (place < inputs)[None, :]
            tile = tl.load(a + rank[:, None] * inputs + place[None, :], mask=inside, other=0.0).to(tl.float32)
            total += tl.sum(tile * own[None, :], 1)
        tl.store(shrunk + row * widest + rank, total, mask=rank < ranks)


@launched_directly
@triton.jit
def _expand(
    y: tl.tensor,
    slots: tl.tensor,
    words: tl.tensor,
    shrunk: tl.tensor,
    outputs: tl.tensor,
    widest: tl.tensor,
    ENTRY: tl.constexpr,
    WORDS: tl.constexpr,
    OUTPUTS: tl.constexpr,
) -> None:
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    slot = tl.load(slots + row)
    entry = words + slot * ENTRY + (1 + part) * WORDS
    ranks = tl.load(entry + 2)
    first, size = tl.load(entry + 3), tl.load(entry + 4)
    column = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = column < size
    if (ranks > 0) & (tl.program_id(1) * OUTPUTS < size):
        b = tl.load(entry).to(y.dtype)
        own = shrunk + row * widest + tl.load(entry + 1)
        total = tl.zeros((OUTPUTS,), tl.float32)
        for rank in range(0, ranks):
            total += tl.load(own + rank) * tl.load(b + rank * size + column, mask=inside, other=0.0).to(tl.float32)
        here = y + row * outputs + first + column
        before = tl.load(here, mask=inside, other=0.0).to(tl.float32)
        tl.store(here, (before + total).to(y.dtype.element_ty), mask=inside)


def reference(
    x: Tensor, y: Tensor, slots: Tensor, adapters: dict[int, tuple[Tensor, list[tuple[int, int, Tensor]]]]
) -> Tensor:
    """Returns what `y` becomes, with PyTorch operators in fp32.

    `adapters` are by slot A, and of each part its first output, its first rank and its B.
    """
    found = y.float()
    for row, slot in enumerate(slots.tolist()):
        if slot in adapters:
            a, parts = adapters[slot]
            shrunk = a.float() @ x[row].float()
            for first, rank_first, b in parts:
                rank, size = b.shape
                found[row, first : first + size] += shrunk[rank_first : rank_first + rank] @ b.float()
    return found.to(y.dtype)
