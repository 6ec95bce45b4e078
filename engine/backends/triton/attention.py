"""Computes paged attention by two Triton kernels: one for single queries, which splits long sequences, one for chunks.

A step of both begins with the single queries, as the scheduler plans it; one behind a chunk goes as a chunk.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.device import to_device
from engine.model.batch import Batch
from kernels.attention_parts import FEW_SPLITS, MAX_SPLITS
from kernels.device import processors
from kernels.paged_decode_attention import paged_decode_attention, split_count
from kernels.prefill_attention import prefill_attention

MANY = 1024
"""Queries of a work that fill the largest tile."""


@dataclass(frozen=True)
class Tables:
    """Says where works find their KV, as the kernels take it."""

    blocks: Tensor  # [works, width] int32
    kv_lengths: Tensor  # [works] int32


@dataclass(frozen=True)
class Chunks:
    """Holds the works behind the single queries."""

    tables: Tables
    query_start: Tensor  # [works + 1] int32, from the first chunk's first row
    longest: int  # queries of one work


class TritonAttention:
    """See `engine.model.attention.Attention`. A pool's layers are `[blocks, kv_heads, 2, block, head_dim]`."""

    def __init__(self, layers: list[Tensor], windows: tuple[int, ...]) -> None:
        self._layers = layers
        self._windows = windows
        self.device, self.block = layers[0].device, layers[0].shape[3]
        self._processors = processors(self.device)

    def begin(self, batch: Batch) -> "TritonAttentionStep":
        """Brings lengths and tables into the kernels' format."""
        lengths = batch.query_lengths
        works, tokens = len(lengths), int(lengths.sum())
        singles = works if tokens == works else int((lengths != 1).argmax())
        starts = np.zeros(works - singles + 1, np.int64)
        lengths[singles:].cumsum(out=starts[1:])
        packed = to_device(np.concatenate((batch.kv_lengths, starts)).astype(np.int32), self.device)
        tables = Tables(batch.block_tables.int(), packed[:works])
        chunks = None
        if singles < works:
            rest = Tables(tables.blocks[singles:], tables.kv_lengths[singles:])
            chunks = Chunks(rest, packed[works:], int(lengths[singles:].max()))
        longest = int(batch.kv_lengths[:singles].max(initial=0))
        first = Tables(tables.blocks[:singles], tables.kv_lengths[:singles])
        return self.step(batch.slots, first, longest, chunks)

    def warm_up(self, heads: int) -> None:
        """Launches each variant of the kernels once, with one query of `heads` heads that sees the null block."""
        pool = self._layers[0]
        queries = pool.new_zeros((1, heads, pool.shape[-1]))
        table = torch.zeros((1, 1), dtype=torch.int32, device=self.device)
        lengths = torch.ones_like(table[0])
        starts = torch.arange(2, dtype=torch.int32, device=self.device)
        for window in dict.fromkeys(self._windows):
            for splits in (1, FEW_SPLITS, MAX_SPLITS):
                paged_decode_attention(queries, pool, table, lengths, splits=splits, window=window)
                for longest in (1, MANY):
                    prefill_attention(
                        queries, pool, table, starts, lengths, longest=longest, splits=splits, window=window
                    )

    def step(self, slots: Tensor, singles: Tables, longest: int, chunks: Chunks | None = None) -> "TritonAttentionStep":
        """Makes a step whose first rows are the single queries, of texts of up to `longest` tokens."""
        kv_heads = self._layers[0].shape[1]
        splits = split_count(len(singles.kv_lengths), kv_heads, self._processors, longest) if longest else 1
        return TritonAttentionStep(self._layers, self._windows, slots, singles, splits, chunks)


class TritonAttentionStep:
    """See `engine.model.attention.AttentionStep`."""

    def __init__(
        self,
        layers: list[Tensor],
        windows: tuple[int, ...],
        slots: Tensor,
        singles: Tables,
        splits: int,
        chunks: Chunks | None,
    ) -> None:
        self._layers = layers
        self._windows = windows
        self.slots = slots  # [tokens] int64, as a batch has them
        self._singles = singles
        self._splits = splits
        self._chunks = chunks

    def pool(self, layer: int) -> Tensor:
        """Returns a layer of the pool, for the kernel that rotates keys and stores them."""
        return self._layers[layer]

    def store(self, layer: int, keys_values: Tensor) -> None:
        """Stores by PyTorch's operators, for tests: the engine's steps store with the kernel that rotates."""
        pool = self._layers[layer]
        _, kv_heads, _, block, dim = pool.shape
        pool[self.slots // block, :, :, self.slots % block] = keys_values.view(-1, 2, kv_heads, dim).transpose(1, 2)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        pool, window, singles = self._layers[layer], self._windows[layer], self._singles
        count = len(singles.kv_lengths)
        found = []
        if count:
            own, splits = queries[:count], self._splits
            found.append(
                paged_decode_attention(own, pool, singles.blocks, singles.kv_lengths, splits=splits, window=window)
            )
        if self._chunks is not None:
            own, starts, longest = queries[count:], self._chunks.query_start, self._chunks.longest
            tables = self._chunks.tables
            found.append(
                prefill_attention(own, pool, tables.blocks, starts, tables.kv_lengths, longest=longest, window=window)
            )
        return found[0] if len(found) == 1 else torch.cat(found)
