"""One step of paged attention: its sequences as the kernels take them, and the two kernels of a layer.

Rows of decodes come first; chunks of prompts follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.backends.reference.attention.kv_rows import rows_of
from engine.backends.triton.attention.latent_chunks import (
    ExpandedChunks,
    attend_expanded,
)
from engine.model.attention import AttentionStep
from engine.model.config import HeadAttention, LatentAttention
from engine.model.kv_layout import KV_FORM_BY_DTYPE, AnyAttention
from engine.model.layers.linear import LatentProducts
from kernels.attention.attention_tiles import ScoreParams
from kernels.attention.latent_decode_attention import latent_decode_attention
from kernels.attention.latent_prefill_attention import latent_prefill_attention
from kernels.attention.multi_query import MultiQuery
from kernels.attention.paged_decode_attention import paged_decode_attention
from kernels.attention.prefill_attention import prefill_attention
from kernels.attention.split_kv import SplitPlan


@dataclass(frozen=True)
class SequenceTables:
    """Block tables and lengths of sequences, as the kernels take them."""

    blocks: Tensor  # [works, width] int32
    kv_lengths: Tensor  # [works] int32


@dataclass(frozen=True)
class DecodeSequences:
    """Sequences of decode attention, with one query each or several."""

    tables: SequenceTables
    split: SplitPlan | None  # None: no sequence is split
    rows: int  # of all
    multi_query: MultiQuery | None = None  # None: each sequence has one query
    padded: bool = False  # whether there are padding rows


@dataclass(frozen=True)
class AbsorbedChunks:
    """Chunks of latent attention that attend in the absorbed form, beside others that do not."""

    rows: slice  # of the step's chunks
    tables: SequenceTables
    query_start: Tensor  # [works + 1] int32, from the first of the rows


@dataclass(frozen=True)
class PrefillChunks:
    """Sequences of prefill attention, after the decodes."""

    tables: SequenceTables
    query_start: Tensor  # [works + 1] int32, from the first chunk's first row
    longest: int  # queries of one work
    expanded: Sequence[ExpandedChunks]  # of latent attention; empty, where it expands none of the chunks
    absorbed: Sequence[AbsorbedChunks]  # the others, where it expands some of them
    first_row: int  # of the step that prefill attention takes: that behind the decodes, or 0, as in a mixed recording


@dataclass(frozen=True)
class KVGroupStep:
    """A step's sequences in one KV group."""

    slots: Tensor  # [tokens] int64, as a batch has them
    decodes: DecodeSequences
    chunks: PrefillChunks | None


class TritonAttentionStep(AttentionStep):
    def __init__(
        self, layers: Sequence[Tensor], attentions: Sequence[AnyAttention], steps: Sequence[KVGroupStep]
    ) -> None:
        """Takes each layer's KV, attention parameters and group step."""
        self._layers = layers
        self._attentions = attentions
        self._steps = steps

    def pool(self, layer: int) -> Tensor:
        """Returns a layer of the pool, for the kernel that rotates keys and stores them."""
        return self._layers[layer]

    def slots(self, layer: int) -> Tensor:
        """Returns where the tokens' KV goes there, `[tokens]` int64."""
        return self._steps[layer].slots

    def store(self, layer: int, keys_values: Tensor) -> None:
        """Stores with PyTorch operators, for tests: the engine's steps store with the kernel that rotates."""
        pool, slots, attention = self._layers[layer], self.slots(layer), self._attentions[layer]
        assert isinstance(attention, HeadAttention)
        rows = rows_of(pool.flatten(1, 2), attention, keys_values.dtype)
        block, kv_heads, dim = rows.block, attention.kv_heads, attention.head_dim
        if pool.dtype in KV_FORM_BY_DTYPE:
            vectors = torch.arange(2 * kv_heads, device=slots.device).view(-1, 2).T.flatten()  # keys before values
            places = (slots // block * (2 * kv_heads))[:, None] + vectors
            rows.put((places * block + (slots % block)[:, None]).flatten(), keys_values.reshape(-1, dim))
            return
        pool[slots // block, :, :, slots % block] = keys_values.view(-1, 2, kv_heads, dim).transpose(1, 2)

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        pool, attention, step = self._layers[layer], self._attentions[layer], self._steps[layer]
        if isinstance(attention, LatentAttention):
            return _attend_latents(pool, attention, queries, step.decodes, step.chunks)
        scoring = score_params(attention)
        decodes, chunks, count = step.decodes, step.chunks, step.decodes.rows
        output = _room(queries, queries.shape, decodes)  # of both kernels: a place for each would be copied
        if chunks is not None:
            prefill_attention(
                queries[chunks.first_row :],
                pool,
                chunks.tables.blocks,
                chunks.query_start,
                chunks.tables.kv_lengths,
                longest=chunks.longest,
                scoring=scoring,
                sinks=sinks,
                output=output[chunks.first_row :],
            )
        if count:
            paged_decode_attention(
                queries[:count],
                pool,
                decodes.tables.blocks,
                decodes.tables.kv_lengths,
                multi_query=decodes.multi_query,
                split=decodes.split,
                scoring=scoring,
                sinks=sinks,
                output=output[:count],
            )
        return output

    def attend_latent(self, layer: int, queries: Tensor, products: LatentProducts) -> Tensor:
        pool, attention, step = self._layers[layer], self._attentions[layer], self._steps[layer]
        assert isinstance(attention, LatentAttention)
        chunks = step.chunks
        if chunks is None or not chunks.expanded:
            return products.values(self.attend(layer, products.absorbed(queries)))
        count = step.decodes.rows
        output = queries.new_empty((*queries.shape[:2], attention.value_dim))
        if count:
            absorbed = products.absorbed(queries[:count])
            output[:count] = products.values(_attend_latents(pool, attention, absorbed, step.decodes, None))
        queries, rest = queries[count:], output[count:]
        for run in chunks.absorbed:
            attended = latent_prefill_attention(
                products.absorbed(queries[run.rows]),
                pool,
                run.tables.blocks,
                run.query_start,
                run.tables.kv_lengths,
                latent=attention.latent_rank,
                scale=attention.scale,
            )
            rest[run.rows] = products.values(attended)
        attend_expanded(pool, queries, chunks.expanded, attention, products, rest)
        return output


def _attend_latents(
    pool: Tensor, attention: LatentAttention, queries: Tensor, decodes: DecodeSequences, chunks: PrefillChunks | None
) -> Tensor:
    """Attends from absorbed `queries` `[tokens, heads, latent + rope]`; returns `[tokens, heads, latent]`."""
    count = decodes.rows
    output = _room(queries, (*queries.shape[:2], attention.latent_rank), decodes)
    if count:
        latent_decode_attention(
            queries[:count],
            pool,
            decodes.tables.blocks,
            decodes.tables.kv_lengths,
            latent=attention.latent_rank,
            scale=attention.scale,
            multi_query=decodes.multi_query,
            split=decodes.split,
            output=output[:count],
        )
    if chunks is not None:
        latent_prefill_attention(
            queries[count:],
            pool,
            chunks.tables.blocks,
            chunks.query_start,
            chunks.tables.kv_lengths,
            latent=attention.latent_rank,
            scale=attention.scale,
            output=output[count:],
        )
    return output


def _room(queries: Tensor, shape: Sequence[int], decodes: DecodeSequences) -> Tensor:
    """Allocates a result; padding rows are zero, since they go on to the next layers."""
    return queries.new_zeros(shape) if decodes.padded else queries.new_empty(shape)


def score_params(attention: HeadAttention) -> ScoreParams:
    """Returns a layer's attention parameters for the kernels."""
    return ScoreParams(attention.scale, attention.window, attention.softcap)
