"""Random KV pools, plain and quantized, for kernels that store KV or read it."""

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.kernels.case import Inputs, close
from kernels.attention.split_kv import SplitPlan, max_parts, may_split, plan_splits, split_plan_of
from kernels.quantized.kv_bytes import KV_FORMATS, reference_dequantized, reference_packed

KVFormat = Literal["plain", "int8", "fp8"]
BLOCK_TOKENS = 16
H200_PROCESSORS = 132
"""Processors of the GPU for which splits are chosen where the device is absent."""


class Heads(NamedTuple):
    """Query heads, KV heads and head size."""

    queries: int
    keys: int
    dim: int

    def __str__(self) -> str:
        return f"{self.queries}/{self.keys} x {self.dim}"


class Vectors(NamedTuple):
    """Query heads, and the sizes of the latent vector and the rotated key that they share."""

    heads: int
    latent: int
    rope: int

    @property
    def parts(self) -> tuple[int, int]:
        return self.latent, self.rope

    @property
    def scale(self) -> float:
        return float((self.latent // 4 + self.rope) ** -0.5)

    def __str__(self) -> str:
        return f"{self.heads} heads x ({self.latent} + {self.rope})"


class PartHeads(NamedTuple):
    """Query heads of latent attention, and sizes: a key's own and shared part, a value, the latent vector."""

    heads: int
    nope: int
    rope: int
    value: int
    latent: int

    @property
    def scale(self) -> float:
        return float((self.nope + self.rope) ** -0.5)

    def __str__(self) -> str:
        return f"{self.heads} heads x ({self.nope} + {self.rope}, {self.value})"


class PagedKV(NamedTuple):
    """KV of sequences of equal length, in blocks in random order."""

    pool: Tensor  # [blocks, *vectors, block, width], or [blocks, *vectors, bytes]; block 0 is the null block
    tables: Tensor  # [sequences, blocks of each] int32
    lengths: Tensor  # [sequences] int32

    def contiguous(self) -> tuple[Tensor, Tensor]:
        """Returns keys and values, each `[sequences, kv_heads, tokens, dim]`, of a plain pool of heads."""
        sequences, width = self.tables.shape
        _, heads, _, block, dim = self.pool.shape
        found = self.pool[self.tables.long().flatten()].view(sequences, width, heads, 2, block, dim)
        keys, values = found.permute(3, 0, 2, 1, 4, 5).reshape(2, sequences, heads, width * block, dim).unbind()
        tokens = int(self.lengths[0])
        return keys[:, :, :tokens], values[:, :, :tokens]

    def exact(self, sequences: int, *parts: int) -> "PagedKV":
        tables = self.tables[:sequences]
        own = torch.arange(tables.numel(), dtype=torch.int32, device=tables.device).view(tables.shape)
        return PagedKV(exact(self.pool[tables.long().flatten()], *parts), own, self.lengths[:sequences])


def paged(
    inputs: Inputs, sequences: int, tokens: int, block: int, vectors: tuple[int, ...], kv: KVFormat, *parts: int
) -> PagedKV:
    width = -(-tokens // block)
    pool = inputs.normal(1 + sequences * width, *vectors, block, sum(parts))
    pool[0] = 0
    tables = torch.randperm(sequences * width, device=inputs.device).add_(1).int().view(sequences, width)
    lengths = torch.full((sequences,), tokens, dtype=torch.int32, device=inputs.device)
    return PagedKV(in_format(pool, kv, *parts), tables, lengths)


def in_format(pool: Tensor, kv: KVFormat, *parts: int) -> Tensor:
    dtypes = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
    return pool if kv == "plain" else reference_packed(pool, dtypes[kv], *parts)


def exact(pool: Tensor, *parts: int) -> Tensor:
    return (reference_dequantized(pool, *parts) if pool.dtype in KV_FORMATS else pool).double()


def vector_bytes(kv: KVFormat, dtype: torch.dtype, *parts: int) -> int:
    return sum(parts) * dtype.itemsize if kv == "plain" else sum(parts) + 2 * len(parts)


def close_in_format(found: Tensor, expected: Tensor, *parts: int) -> None:
    """Compares layers of one kind; raises AssertionError.

    Quantized bytes may differ by one step, in few places: values were rounded to 16 bits in two ways before.
    """
    if found.dtype not in KV_FORMATS:
        close(found, expected)
        return
    one, other = exact(found, *parts), exact(expected, *parts)
    step = 1 / 127 if found.dtype == torch.int8 else 1 / 14
    for ours, theirs in zip(one.split(parts, -1), other.split(parts, -1), strict=True):
        assert ((ours - theirs).abs() <= theirs.abs().amax(-1, keepdim=True) * 1.01 * step).all(), "bytes are far apart"
    apart = float((found.view(torch.uint8) != expected.view(torch.uint8)).float().mean())
    assert apart < 0.05, f"{apart:.1%} of the bytes differ"


def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else H200_PROCESSORS


def split_kv(inputs: Inputs, sequences: int, context: int, programs: int, window: int = 0) -> SplitPlan | None:
    """Plans split-KV as the engine does; None for a context that is not split."""
    if not may_split(context, window):
        return None
    room = max_parts(processors(inputs.device), programs)
    planned = torch.from_numpy(plan_splits(np.full(sequences, context), room, window)).to(inputs.device)
    return split_plan_of(planned, sequences, room)
