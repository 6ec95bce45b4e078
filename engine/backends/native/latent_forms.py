"""Chooses for each sequence of a step whether native latent attention is absorbed or expanded.

In fp32 all are absorbed: the expanded form sums in another order, and bits must not depend on the chunk.
"""

import ctypes

import numpy as np
import torch

from engine.backends.native.attention import MAX_BLOCK, MAX_HEAD_DIM, NativeGroupStep, plan
from engine.backends.native.library import DTYPE_CODES, KV_DTYPE_CODES, AttentionArguments, ExpandedSequence, RowRange
from engine.model.batch import Batch
from engine.model.config import LatentAttention
from engine.model.layers.latent import expands

MAX_EXPANDED_BYTES = 256 << 20
"""Maximum bytes of expanded keys and values of one sequence."""
ABSORBED_ONLY_DTYPES = frozenset({torch.float32})
"""Dtypes in which no sequence is expanded."""


class LatentForms:
    """Form in which each sequence of a step attends: absorbed ranges of rows, and expanded sequences."""

    def __init__(
        self, native: ctypes.CDLL, batch: Batch, group: NativeGroupStep, attention: LatentAttention, dtype: torch.dtype
    ) -> None:
        branching = batch.trees.works if batch.trees is not None else ()
        works = list(zip(batch.query_lengths.tolist(), batch.kv_lengths.tolist(), strict=True))
        self.expanding = tuple(
            work
            for work, (queries, keys) in enumerate(works)
            if work not in branching and _expands(attention, dtype, queries, keys)
        )
        self.longest = max((works[work][1] for work in self.expanding), default=0)
        self._expanded = [ExpandedAttention(native, attention, dtype, *works[work]) for work in self.expanding]
        starts = np.cumsum(batch.query_lengths) - batch.query_lengths
        absorbing: list[RowRange] = []
        for work, (queries, _) in enumerate(works):
            if work in self.expanding:
                continue
            first = int(starts[work])
            if absorbing and absorbing[-1].first + absorbing[-1].count == first:
                absorbing[-1].count += queries
            else:
                absorbing.append(RowRange(first, queries))
        self.absorbing = (RowRange * len(absorbing))(*absorbing)
        table, stride = group.arguments.tables, group.arguments.table_stride * 8
        expanded = [
            ExpandedSequence(
                RowRange(int(starts[work]), works[work][0]),
                works[work][1],
                table + work * stride,
                attention_over.pointer,
            )
            for work, attention_over in zip(self.expanding, self._expanded, strict=True)
        ]
        self.expansions = (ExpandedSequence * len(expanded))(*expanded)


class ExpandedAttention:
    """Arguments of attention over the expanded keys and values of one sequence."""

    def __init__(
        self, native: ctypes.CDLL, attention: LatentAttention, dtype: torch.dtype, queries: int, keys: int
    ) -> None:
        self._table = torch.arange(-(-keys // MAX_BLOCK))
        arguments = AttentionArguments(
            format=DTYPE_CODES[dtype],
            kv=KV_DTYPE_CODES[dtype],
            kv_heads=attention.heads,
            vectors=2,
            shared=1,
            dim=attention.nope_dim + attention.rope_dim,
            value_dim=attention.value_dim,
            block=MAX_BLOCK,
            tables=self._table.data_ptr(),
            table_stride=len(self._table),
        )
        lengths = np.array([queries], np.int64), np.array([keys], np.int64)
        self._units, self._partials = plan(native, arguments, *lengths, torch.get_num_threads())
        arguments.units, arguments.unit_count = self._units.ctypes.data, len(self._units)
        arguments.partials = self._partials.data_ptr() if self._partials.numel() else None
        self.pointer = ctypes.pointer(arguments)


def expanded_values(attention: LatentAttention, keys: int) -> int:
    return -(-keys // MAX_BLOCK) * MAX_BLOCK * attention.heads * 2 * (attention.nope_dim + attention.rope_dim)


def expands_in(dtype: torch.dtype) -> bool:
    return dtype not in ABSORBED_ONLY_DTYPES


def _expands(attention: LatentAttention, dtype: torch.dtype, queries: int, keys: int) -> bool:
    dim = attention.nope_dim + attention.rope_dim
    fits = dim <= MAX_HEAD_DIM and dim % 2 == 0 and attention.value_dim <= dim
    small = expanded_values(attention, keys) * dtype.itemsize <= MAX_EXPANDED_BYTES
    return expands_in(dtype) and fits and small and expands(attention, queries, keys)
