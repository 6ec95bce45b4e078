"""Makes inputs of attention: a pool of blocks in random order, block tables, the same keys and values in a row."""

from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.case import random
from benchmarks.kernels.quantized.kv import KVForm, exact, in_form

BLOCK = 16
PROCESSORS = 132
"""Of an H200; splits for a device that is not there are chosen as for this one."""


class Heads(NamedTuple):
    """Says how many heads there are, and of what size."""

    queries: int
    keys: int
    dim: int

    def __str__(self) -> str:
        return f"heads {self.queries}/{self.keys} x {self.dim}"


LLAMA, QWEN = Heads(32, 8, 128), Heads(16, 8, 128)
"""Of Llama-3.1-8B and Qwen3-0.6B."""
GEMMA, GEMMA_2, GPT_OSS = Heads(16, 8, 256), Heads(8, 4, 256), Heads(64, 8, 64)
OLMO, PHI = Heads(32, 32, 128), Heads(24, 8, 128)
"""Of Gemma-3-12B, Gemma-2-2B, gpt-oss-20b; of OLMo-2-7B and Phi-4-mini."""


class Paged(NamedTuple):
    """Holds the KV of `works` sequences of equal length."""

    pool: Tensor  # [blocks, kv_heads, 2, block, dim], or … bytes]; block 0 is the null block
    tables: Tensor  # [works, blocks of each] int32
    lengths: Tensor  # [works] int32

    def contiguous(self) -> tuple[Tensor, Tensor]:
        """Returns keys and values, each `[works, kv_heads, tokens, dim]`, of a pool of numbers."""
        works, width = self.tables.shape
        _, heads, _, block, dim = self.pool.shape
        found = self.pool[self.tables.long().flatten()].view(works, width, heads, 2, block, dim)
        keys, values = found.permute(3, 0, 2, 1, 4, 5).reshape(2, works, heads, width * block, dim).unbind()
        return keys[:, :, : self._tokens], values[:, :, : self._tokens]

    def exact(self, works: int, dim: int) -> "Paged":
        """Returns the first `works` of them in fp64, for a reference: all of them may be too large for that."""
        tables = self.tables[:works]
        own = torch.arange(tables.numel(), dtype=torch.int32, device=tables.device).view(tables.shape)
        return Paged(exact(self.pool[tables.long().flatten()], dim), own, self.lengths[:works])

    @property
    def _tokens(self) -> int:
        return int(self.lengths[0])


def paged(
    works: int,
    tokens: int,
    heads: Heads,
    block: int,
    device: torch.device,
    dtype: torch.dtype,
    form: KVForm = "numbers",
) -> Paged:
    """Draws random KV."""
    width = -(-tokens // block)
    pool = random((1 + works * width, heads.keys, 2, block, heads.dim), device, dtype)
    pool[0] = 0
    tables = torch.randperm(works * width, device=device).add_(1).int().view(works, width)
    return Paged(in_form(pool, form, heads.dim), tables, torch.full((works,), tokens, dtype=torch.int32, device=device))


def processors(device: torch.device) -> int:
    """Returns the number of processors of a GPU that is there, or of the one that is meant."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else PROCESSORS
