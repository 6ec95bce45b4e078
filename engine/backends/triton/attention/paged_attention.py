"""Computes paged attention with two Triton kernels: decode (split-KV, multi-query) and prefill of chunks.

The scheduler puts works of few queries (decodes, with or without draft tokens) at the beginning of a step. Such a work
after a chunk is computed as a chunk, unless its draft tokens branch, which only the decode kernel supports.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.backends.triton.attention.attention_step import (
    AbsorbedChunks,
    DecodeSequences,
    KVGroupStep,
    PrefillChunks,
    SequenceTables,
    TritonAttentionStep,
    score_params,
)
from engine.backends.triton.attention.latent_chunks import (
    ChunkSizes,
    ExpandedChunks,
    plan_expanded,
    runs_by_form,
    warm_up_expanded,
)
from engine.device import to_device
from engine.model.batch import Batch, Ints
from engine.model.config import HeadAttention, LatentAttention
from engine.model.kv_layout import AnyAttention, groups_of_layers, quantized_layer
from kernels.attention.attention_parts import FEW_SPLITS, MAX_SPLITS
from kernels.attention.latent_decode_attention import latent_decode_attention
from kernels.attention.latent_prefill_attention import latent_prefill_attention
from kernels.attention.latent_tiles import programs_of
from kernels.attention.multi_query import MultiQuery
from kernels.attention.paged_decode_attention import paged_decode_attention
from kernels.attention.prefill_attention import prefill_attention
from kernels.attention.split_kv import SplitPlan, max_parts, may_split, plan_splits, split_plan_of, split_plan_words
from kernels.device import processors

MAX_DECODE_QUERIES = 17
"""Maximum queries of a sequence in decode attention without trees: the maximum of drafts plus one."""
WARM_UP_QUERIES = 1024
"""Queries that fill the largest tile."""


class TritonAttention:
    def __init__(
        self, layers: Sequence[Tensor], attentions: Sequence[AnyAttention], dtype: torch.dtype | None = None
    ) -> None:
        """Takes the pool's layers, as `engine/model/kv_layout.py` has them.

        `dtype` is what the model computes in; None: the layers' own format.
        """
        self._layers = [
            layer.unflatten(1, (-1, 2)) if isinstance(attention, HeadAttention) else layer
            for layer, attention in zip(layers, attentions, strict=True)
        ]  # [blocks, kv_heads, 2, block, head_dim], or [blocks, 1, block, latent + rope]; or … bytes]
        self._attentions = attentions
        self._group_of_layer = groups_of_layers(attentions)
        self.groups = max(self._group_of_layer) + 1
        self._firsts = [self._group_of_layer.index(group) for group in range(self.groups)]  # of each group a layer
        self.windows = [attentions[first].window for first in self._firsts]  # of each group
        quantized = quantized_layer(layers[0], attentions[0])
        self.device, self.block = layers[0].device, layers[0].shape[2] if quantized is None else quantized.block
        self._dtype = dtype or layers[0].dtype
        programs = [_programs(attentions[first]) for first in self._firsts]
        self._max_parts = [max_parts(processors(self.device), each) for each in programs]

    def begin(self, batch: Batch) -> TritonAttentionStep:
        """Converts lengths and block tables to the kernels' format."""
        lengths = batch.query_lengths
        works, decodes = len(lengths), self._decodes(batch)
        own = lengths[:decodes]
        rows, most = int(own.sum()), int(own.max(initial=1))
        starts = np.zeros(works - decodes + 1, np.int64)
        lengths[decodes:].cumsum(out=starts[1:])
        cuts = self.groups_that_cut(int(batch.kv_lengths[:decodes].max(initial=0)))
        parts = batch.kv_lengths, starts, own.cumsum() - own, own, self.plan(batch.kv_lengths[:decodes], cuts)
        packed = to_device(np.concatenate(parts).astype(np.int32), self.device)
        kv_lengths, device_starts, firsts, counts, planned = packed.split([len(part) for part in parts])
        multi_query = (
            MultiQuery(firsts, counts, most, self._tree_mask(batch, rows)) if most > 1 or batch.trees else None
        )
        splits = self.split_plans(planned, decodes, cuts)
        steps = []
        for group, places in enumerate(batch.groups):
            blocks, chunks = places.block_tables.int(), None
            if decodes < works:
                rest = SequenceTables(blocks[decodes:], kv_lengths[decodes:])
                sizes = list(zip(lengths[decodes:].tolist(), batch.kv_lengths[decodes:].tolist(), strict=True))
                forms = self._forms(group, sizes, rest, starts, device_starts)
                chunks = PrefillChunks(rest, device_starts, int(lengths[decodes:].max()), *forms, rows)
            first = SequenceTables(blocks[:decodes], kv_lengths[:decodes])
            steps.append(
                KVGroupStep(places.slots, DecodeSequences(first, splits.get(group), rows, multi_query), chunks)
            )
        return self.step(steps)

    def _forms(
        self, group: int, works: Sequence[ChunkSizes], tables: SequenceTables, starts: Ints, device_starts: Tensor
    ) -> tuple[list[ExpandedChunks], list[AbsorbedChunks]]:
        """Returns the chunks in either form, if some are expanded; `device_starts` are `starts` on the device."""
        attention = self._attentions[self._firsts[group]]
        if not isinstance(attention, LatentAttention):
            return [], []
        expanded, absorbed = runs_by_form(attention, works)
        if not expanded:
            return [], []
        return plan_expanded(attention, works, expanded, tables.blocks, self.block, self._dtype), [
            AbsorbedChunks(
                slice(int(starts[run.start]), int(starts[run.stop])),
                SequenceTables(tables.blocks[run], tables.kv_lengths[run]),
                device_starts[run.start : run.stop + 1] - device_starts[run.start],
            )
            for run in absorbed
        ]

    def _decodes(self, batch: Batch) -> int:
        many = batch.query_lengths > MAX_DECODE_QUERIES
        if batch.trees is not None:
            many[list(batch.trees.works)] = False
        count = int(many.argmax()) if many.any() else len(many)
        assert batch.trees is None or max(batch.trees.works) < count, "draft tokens that branch after a chunk"
        return count

    def _tree_mask(self, batch: Batch, rows: int) -> Tensor | None:
        if batch.trees is None:
            return None
        windows = [window for window in self.windows if window]
        assert batch.trees.deepest < min(windows, default=1 << 62), "a tree deeper than a window"
        return torch.stack((batch.positions[:rows], batch.trees.lasts[:rows], batch.trees.bits[:rows]))

    def groups_that_cut(self, longest: int) -> list[int]:
        return [group for group, window in enumerate(self.windows) if may_split(longest, window)]

    def words_of_plan(self, works: int, groups: Sequence[int]) -> int:
        return sum(split_plan_words(works, self._max_parts[group]) for group in groups)

    def plan(self, lengths: Ints, groups: Sequence[int]) -> NDArray[np.int32]:
        """Plans split-KV for sequences of these `lengths`, one group after the other."""
        plans = (plan_splits(lengths, self._max_parts[group], self.windows[group]) for group in groups)
        return np.concatenate([np.empty(0, np.int32), *plans])

    def split_plans(self, plan: Tensor, works: int, groups: Sequence[int]) -> dict[int, SplitPlan]:
        """Splits the words of `plan` into each group's plan, on the device."""
        sizes = [split_plan_words(works, self._max_parts[group]) for group in groups]
        parts = plan[: sum(sizes)].split(sizes)
        return {
            group: split_plan_of(part, works, self._max_parts[group]) for group, part in zip(groups, parts, strict=True)
        }

    def warm_up(self) -> None:
        """Launches each kernel variant once, with one query over the null block."""
        table = torch.zeros((1, 1), dtype=torch.int32, device=self.device)
        lengths = torch.ones_like(table[0])
        starts = torch.arange(2, dtype=torch.int32, device=self.device)
        groups = range(self.groups)
        plan = to_device(self.plan(np.ones(1, np.int64), groups), self.device)
        plans = self.split_plans(plan, 1, groups)
        for attention in dict.fromkeys(self._attentions):
            layer = self._attentions.index(attention)
            pool = self._layers[layer]
            ways = None, plans[self._group_of_layer[layer]]
            if isinstance(attention, LatentAttention):
                self._warm_up_latents(attention, pool, SequenceTables(table, lengths), starts, ways)
                continue
            queries = torch.zeros((1, attention.heads, attention.head_dim), dtype=self._dtype, device=self.device)
            decode = partial(paged_decode_attention, queries, pool, table, lengths, scoring=score_params(attention))
            prefill = partial(prefill_attention, queries, pool, table, starts, lengths, scoring=score_params(attention))
            sinks = torch.zeros(attention.heads, device=self.device) if attention.sinks else None
            for cuts in ways:
                for multi_query in self._one_row():
                    decode(sinks=sinks, multi_query=multi_query, split=cuts)
            for splits in (1, FEW_SPLITS, MAX_SPLITS):
                for longest in (1, WARM_UP_QUERIES):
                    prefill(sinks=sinks, longest=longest, splits=splits)

    def _one_row(self) -> tuple[MultiQuery | None, ...]:
        start, count = torch.tensor([[0], [1]], dtype=torch.int32, device=self.device)
        tree_mask = torch.zeros((3, 1), dtype=torch.int64, device=self.device)
        return None, MultiQuery(start, count, 1), MultiQuery(start, count, 1, tree_mask)

    def _warm_up_latents(
        self,
        attention: LatentAttention,
        pool: Tensor,
        tables: SequenceTables,
        starts: Tensor,
        ways: Sequence[SplitPlan | None],
    ) -> None:
        width = attention.latent_rank + attention.rope_dim
        queries = torch.zeros((1, attention.heads, width), dtype=self._dtype, device=self.device)
        latent, scale = attention.latent_rank, attention.scale
        decode = partial(latent_decode_attention, queries, pool, tables.blocks, tables.kv_lengths)
        prefill = partial(latent_prefill_attention, queries, pool, tables.blocks, starts, tables.kv_lengths)
        for cuts in ways:
            for multi_query in self._one_row():
                decode(latent=latent, scale=scale, multi_query=multi_query, split=cuts)
        for splits in (1, FEW_SPLITS, MAX_SPLITS):
            prefill(latent=latent, scale=scale, splits=splits)
        warm_up_expanded(attention, self.block, self._dtype, self.device)

    def step(self, groups: Sequence[KVGroupStep]) -> TritonAttentionStep:
        """Makes a step; its first rows are the decodes."""
        return TritonAttentionStep(self._layers, self._attentions, [groups[each] for each in self._group_of_layer])


def _programs(attention: AnyAttention) -> int:
    """Counts the programs of one part of a sequence."""
    return attention.kv_heads if isinstance(attention, HeadAttention) else programs_of(attention.heads)
