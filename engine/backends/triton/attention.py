"""Computes paged attention by two Triton kernels: one for single queries, which splits long sequences, one for chunks.

A step of both begins with the single queries, as the scheduler plans it; one behind a chunk goes as a chunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import to_device
from engine.model.attention import AttentionStep
from engine.model.batch import Batch, Ints
from engine.model.config import HeadAttention
from kernels.attention_parts import FEW_SPLITS, MAX_SPLITS
from kernels.attention_tiles import Scoring
from kernels.decode_pieces import Pieces, cut, may_be_cut, pieces_of, room_for_pieces, words_of_pieces
from kernels.device import processors
from kernels.paged_decode_attention import paged_decode_attention
from kernels.prefill_attention import prefill_attention

MANY = 1024
"""Queries of a work that fill the largest tile."""


@dataclass(frozen=True)
class Tables:
    """Says where works find their KV, as the kernels take it."""

    blocks: Tensor  # [works, width] int32
    kv_lengths: Tensor  # [works] int32


@dataclass(frozen=True)
class Singles:
    """Holds the works of one query each."""

    tables: Tables
    pieces: Mapping[int, Pieces]  # by window, how their sequences are cut; those of a window that is missing are whole


@dataclass(frozen=True)
class Chunks:
    """Holds the works behind the single queries."""

    tables: Tables
    query_start: Tensor  # [works + 1] int32, from the first chunk's first row
    longest: int  # queries of one work


class TritonAttention:
    """See `engine.model.attention.Attention`. A pool's layers are `[blocks, kv_heads, 2, block, head_dim]`."""

    def __init__(self, layers: list[Tensor], attentions: Sequence[HeadAttention]) -> None:
        self._layers = layers
        self._attentions = attentions
        self._windows = [attention.window for attention in attentions]
        self.device, self.block = layers[0].device, layers[0].shape[3]
        self._room = room_for_pieces(processors(self.device), layers[0].shape[1])

    def begin(self, batch: Batch) -> "TritonAttentionStep":
        """Brings lengths and tables into the kernels' format."""
        lengths = batch.query_lengths
        works, tokens = len(lengths), int(lengths.sum())
        singles = works if tokens == works else int((lengths != 1).argmax())
        starts = np.zeros(works - singles + 1, np.int64)
        lengths[singles:].cumsum(out=starts[1:])
        cuts = self.windows_that_cut(int(batch.kv_lengths[:singles].max(initial=0)))
        plan = self.plan(batch.kv_lengths[:singles], cuts)
        packed = to_device(np.concatenate((batch.kv_lengths, starts, plan)).astype(np.int32), self.device)
        tables = Tables(batch.block_tables.int(), packed[:works])
        chunks = None
        if singles < works:
            rest = Tables(tables.blocks[singles:], tables.kv_lengths[singles:])
            chunks = Chunks(rest, packed[works : works + len(starts)], int(lengths[singles:].max()))
        first = Tables(tables.blocks[:singles], tables.kv_lengths[:singles])
        pieces = self.pieces(packed[works + len(starts) :], singles, cuts)
        return self.step(batch.slots, Singles(first, pieces), chunks)

    def windows_that_cut(self, longest: int) -> list[int]:
        """Lists the windows of layers where sequences of up to `longest` tokens may be cut into pieces."""
        return [window for window in dict.fromkeys(self._windows) if may_be_cut(longest, window)]

    def words_of_plan(self, works: int, windows: list[int]) -> int:
        """Returns how many numbers the `plan` of so many single queries has."""
        return len(windows) * words_of_pieces(works, self._room)

    def plan(self, lengths: Ints, windows: list[int]) -> NDArray[np.int32]:
        """Cuts sequences of these `lengths`, one query each, into pieces; for each window one after the other."""
        return np.concatenate([np.empty(0, np.int32), *(cut(lengths, self._room, window) for window in windows)])

    def pieces(self, plan: Tensor, works: int, windows: list[int]) -> dict[int, Pieces]:
        """Takes apart on the device what `plan` gave."""
        words = words_of_pieces(works, self._room)
        return {
            window: pieces_of(plan[at * words : (at + 1) * words], works, self._room)
            for at, window in enumerate(windows)
        }

    def warm_up(self) -> None:
        """Launches each variant of the kernels once, with one query that sees the null block."""
        table = torch.zeros((1, 1), dtype=torch.int32, device=self.device)
        lengths = torch.ones_like(table[0])
        starts = torch.arange(2, dtype=torch.int32, device=self.device)
        windows = [*dict.fromkeys(self._windows)]
        plan = to_device(self.plan(np.ones(1, np.int64), windows), self.device)
        pieces = self.pieces(plan, 1, windows)
        for attention in dict.fromkeys(self._attentions):
            pool = self._layers[self._attentions.index(attention)]
            queries = pool.new_zeros((1, attention.heads, attention.head_dim))
            decode = partial(paged_decode_attention, queries, pool, table, lengths, scoring=scoring_of(attention))
            prefill = partial(prefill_attention, queries, pool, table, starts, lengths, scoring=scoring_of(attention))
            sinks = torch.zeros(attention.heads, device=self.device) if attention.sinks else None
            for cuts in (None, pieces[attention.window]):
                decode(sinks=sinks, pieces=cuts)
            for splits in (1, FEW_SPLITS, MAX_SPLITS):
                for longest in (1, MANY):
                    prefill(sinks=sinks, longest=longest, splits=splits)

    def step(self, slots: Tensor, singles: Singles, chunks: Chunks | None = None) -> "TritonAttentionStep":
        """Makes a step whose first rows are the single queries."""
        return TritonAttentionStep(self._layers, self._attentions, slots, singles, chunks)


class TritonAttentionStep(AttentionStep):
    """See `engine.model.attention.AttentionStep`."""

    def __init__(
        self,
        layers: list[Tensor],
        attentions: Sequence[HeadAttention],
        slots: Tensor,
        singles: Singles,
        chunks: Chunks | None,
    ) -> None:
        self._layers = layers
        self._attentions = attentions
        self.slots = slots  # [tokens] int64, as a batch has them
        self._singles = singles
        self._chunks = chunks

    def pool(self, layer: int) -> Tensor:
        """Returns a layer of the pool, for the kernel that rotates keys and stores them."""
        return self._layers[layer]

    def store(self, layer: int, keys_values: Tensor) -> None:
        """Stores by PyTorch's operators, for tests: the engine's steps store with the kernel that rotates."""
        pool = self._layers[layer]
        _, kv_heads, _, block, dim = pool.shape
        pool[self.slots // block, :, :, self.slots % block] = keys_values.view(-1, 2, kv_heads, dim).transpose(1, 2)

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        pool, scoring, tables = self._layers[layer], scoring_of(self._attentions[layer]), self._singles.tables
        count = len(tables.kv_lengths)
        output = queries.new_empty(queries.shape)  # of both kernels: a place of its own for each would be copied
        if count:
            pieces = self._singles.pieces.get(scoring.window)
            paged_decode_attention(
                queries[:count],
                pool,
                tables.blocks,
                tables.kv_lengths,
                pieces=pieces,
                scoring=scoring,
                sinks=sinks,
                output=output[:count],
            )
        if self._chunks is not None:
            tables = self._chunks.tables
            prefill_attention(
                queries[count:],
                pool,
                tables.blocks,
                self._chunks.query_start,
                tables.kv_lengths,
                longest=self._chunks.longest,
                scoring=scoring,
                sinks=sinks,
                output=output[count:],
            )
        return output


def scoring_of(attention: HeadAttention) -> Scoring:
    """Returns how a layer scores keys, as the kernels take it."""
    return Scoring(attention.scale, attention.window, attention.softcap)
