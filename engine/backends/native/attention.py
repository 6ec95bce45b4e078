"""Computes paged attention by the native operator, which reads a KV block in place, once for all heads that share it.

In fp32 a query's result depends, to the bit, on that query and its sequence's KV only: not on the batch, the chunk, the
number of threads, or where the step began.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.backends.native.experts import MOST_EXPERTS
from engine.backends.native.library import FORMATS, AttentionArguments, Manner
from engine.device import dtype_name
from engine.model.attention import AttentionStep
from engine.model.batch import Batch, Ints
from engine.model.config import AttentionLayer, ExpertsMLP, HeadAttention, LayerConfig, TextModel

MAX_HEAD_DIM, MAX_BLOCK = 576, 64
TILE = 128
"""Positions of one softmax."""
UNIT = 8
"""Numbers of a `struct unit`. The library is asked whether these constants are attention_step.h's."""


def unsupported(config: TextModel, dtype: torch.dtype, block: int) -> str:
    """Says why the native operators cannot serve such a model, in a few words; empty: they can."""
    if dtype not in FORMATS:
        return f"fp32 and bf16 are supported, not {dtype_name(dtype)}"
    if MAX_BLOCK % block:
        return f"block sizes that divide {MAX_BLOCK} are supported, not {block}"
    return next(filter(None, map(_missing, dict.fromkeys(config.layers))), "")


def _missing(layer: AttentionLayer) -> str:
    """Says what of a layer there is not; empty: nothing."""
    attention = layer.attention
    if not isinstance(attention, HeadAttention):
        return "latent attention is not supported"
    if attention.head_dim > MAX_HEAD_DIM or attention.head_dim % 2:
        return f"even head sizes up to {MAX_HEAD_DIM} are supported, not {attention.head_dim}"
    if isinstance(layer, LayerConfig) and isinstance(layer.mlp, ExpertsMLP) and layer.mlp.experts > MOST_EXPERTS:
        return f"up to {MOST_EXPERTS} experts are supported, not {layer.mlp.experts}"
    return ""


def manner_of(attention: HeadAttention, sinks: Tensor | None) -> Manner:
    """Returns what the operator is told of one layer; the `sinks` have to outlive it."""
    where = None if sinks is None else sinks.data_ptr()
    return Manner(scale=attention.scale, softcap=attention.softcap, window=attention.window, sinks=where)


class NativeAttention:
    """See `engine.model.attention.Attention`. Layers are `[blocks, kv_heads, 2, block, head_dim]`, fp32 or bf16."""

    def __init__(self, native: ctypes.CDLL, layers: list[Tensor], attentions: Sequence[HeadAttention]) -> None:
        assert all(layer.is_contiguous() for layer in layers)
        limits = (ctypes.c_int64 * 4)()
        native.baton_attention_limits(limits)
        assert tuple(limits) == (MAX_HEAD_DIM, MAX_BLOCK, TILE, UNIT), "other constants than the sources'"
        self._native = native
        self._layers = layers
        self._attentions = attentions

    def begin(self, batch: Batch) -> "NativeAttentionStep":
        return NativeAttentionStep(self._native, self._layers, self._attentions, batch)


class NativeAttentionStep(AttentionStep):
    """See `engine.model.attention.AttentionStep`."""

    def __init__(
        self, native: ctypes.CDLL, layers: list[Tensor], attentions: Sequence[HeadAttention], batch: Batch
    ) -> None:
        self._native = native
        self.pools = [layer.data_ptr() for layer in layers]
        self._attentions = attentions
        self._batch = batch  # keeps the tables alive
        blocks, kv_heads, _, block, dim = layers[0].shape
        for places, end in ((batch.block_tables, blocks), (batch.slots, blocks * block), (batch.fresh_blocks, blocks)):
            assert not places.numel() or (int(places.min()) >= 0 and int(places.max()) < end), "beyond the pool"
        self._dtype, self._dim = layers[0].dtype, dim
        self._arguments = AttentionArguments(
            format=FORMATS[self._dtype],
            kv_heads=kv_heads,
            vectors=2,
            dim=dim,
            value_dim=dim,
            block=block,
            tables=batch.block_tables.data_ptr(),
            table_stride=batch.block_tables.stride(0),
        )

    def store(self, layer: int, keys_values: Tensor) -> None:
        """Clears a block that a sequence enters first: it may leave this worker whole."""
        batch = self._batch
        tokens, sides, dim = keys_values.shape
        assert sides == 2 * self._arguments.kv_heads and dim == self._dim and keys_values.dtype == self._dtype
        assert keys_values.stride()[1:] == (dim, 1) and tokens == len(batch.slots)
        source, stride, slots = keys_values.data_ptr(), keys_values.stride(0), batch.slots.data_ptr()
        fresh, count = batch.fresh_blocks.data_ptr(), len(batch.fresh_blocks)
        self._native.baton_store(self._arguments, source, stride, slots, tokens, fresh, count, self.pools[layer])

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        tokens, heads, dim = queries.shape
        assert queries.stride()[1:] == (dim, 1) and dim == self._dim and queries.dtype == self._dtype
        assert tokens == len(self._batch.slots)
        shared, rest = divmod(heads, self._arguments.kv_heads)
        assert not rest
        output = queries.new_empty((tokens, heads, dim))
        source, stride = queries.data_ptr(), queries.stride(0)
        pool, target = self.pools[layer], output.data_ptr()
        manner = manner_of(self._attentions[layer], sinks)
        self._native.baton_attend(self.prepared(shared), manner, source, stride, pool, target)
        return output

    def prepared(self, shared: int) -> AttentionArguments:
        """Returns what the operators are told, for `shared` query heads to one KV head; valid as long as this step.

        The work's units are cut when the first layer shows how many heads share one of KV.
        """
        if shared != self._arguments.shared:
            self._arguments.shared = shared
            self._units, self._partials = plan(self._native, self._arguments, self._batch, torch.get_num_threads())
            self._arguments.units = self._units.ctypes.data
            self._arguments.unit_count = len(self._units)
            self._arguments.partials = self._partials.data_ptr() if self._partials.numel() else None
        return self._arguments


def plan(native: ctypes.CDLL, arguments: AttentionArguments, batch: Batch, threads: int) -> tuple[Ints, Tensor]:
    """Cuts a step into units that threads take one after the other.

    Returns `[units, 8]`, `struct unit` in attention_step.h, and the room `[floats]` that they need for states of rows.
    """
    floats = ctypes.c_int64()
    lengths = batch.query_lengths.ctypes.data, batch.kv_lengths.ctypes.data, len(batch.query_lengths), threads
    count = native.baton_plan(arguments, *lengths, None, ctypes.byref(floats))
    units = np.empty((count, UNIT), np.int64)
    native.baton_plan(arguments, *lengths, units.ctypes.data, ctypes.byref(floats))
    return units, torch.empty(floats.value)
