"""Computes paged attention by the native operator, which reads a KV block in place, once for all heads that share it.

In fp32 the bits of a query's result depend only on the query and its sequence's KV, not on batch, chunk, threads or the
start of the step.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.backends.native.library import DTYPE_CODES, KV_DTYPE_CODES, AttentionArguments, AttentionParams
from engine.backends.native.linear_layers.experts import MAX_EXPERTS
from engine.device import dtype_name
from engine.model.attention import AttentionStep
from engine.model.batch import Batch, GroupTables, Ints
from engine.model.config import AttentionLayer, ExpertsMLP, HeadAttention, LatentAttention, LayerConfig, TextModel
from engine.model.kv_layout import AnyAttention, groups_of_layers, layout_of, quantized_layer

MAX_HEAD_DIM, MAX_BLOCK = 576, 64
SOFTMAX_TILE = 128
"""Tokens of one softmax."""
UNIT_WORDS = 8
"""Words of a `struct unit`. At start these constants are compared with attention_step.h."""


def unsupported(config: TextModel, dtype: torch.dtype, block: int) -> str:
    """Returns why the native operators cannot serve such a model, or ''."""
    if dtype not in DTYPE_CODES:
        return f"fp32 and bf16 are supported, not {dtype_name(dtype)}"
    if MAX_BLOCK % block:
        return f"block sizes that divide {MAX_BLOCK} are supported, not {block}"
    return next(filter(None, map(_missing, dict.fromkeys(config.layers))), "")


def _missing(layer: AttentionLayer) -> str:
    attention = layer.attention
    width = layout_of(attention).width
    if width > MAX_HEAD_DIM or width % 2:
        what = "head sizes" if isinstance(attention, HeadAttention) else "latent vectors with their keys"
        return f"even {what} up to {MAX_HEAD_DIM} are supported, not {width}"
    if isinstance(layer, LayerConfig) and isinstance(layer.mlp, ExpertsMLP) and layer.mlp.experts > MAX_EXPERTS:
        return f"up to {MAX_EXPERTS} experts are supported, not {layer.mlp.experts}"
    return ""


def _sizes(attention: AnyAttention) -> tuple[int, int, int]:
    if isinstance(attention, LatentAttention):
        return 1, 1, attention.latent_rank
    return attention.kv_heads, 2, attention.head_dim


def attention_params(attention: AnyAttention, sinks: Tensor | None) -> AttentionParams:
    """Returns the operator's parameters of one layer; the `sinks` have to outlive them."""
    where = None if sinks is None else sinks.data_ptr()
    softcap = attention.softcap if isinstance(attention, HeadAttention) else 0.0
    return AttentionParams(scale=attention.scale, softcap=softcap, sinks=where)


class NativeAttention:
    """See `engine.model.attention.Attention`. The pool is fp32 or bf16, or quantized."""

    def __init__(
        self,
        native: ctypes.CDLL,
        layers: Sequence[Tensor],
        attentions: Sequence[AnyAttention],
        dtype: torch.dtype | None = None,
    ) -> None:
        """Takes the pool's layers, as `engine/model/kv_layout.py` has them.

        `dtype` is what the model computes in; None: the layers' own format.
        """
        assert all(layer.is_contiguous() for layer in layers)
        limits = (ctypes.c_int64 * 4)()
        native.baton_attention_limits(limits)
        assert tuple(limits) == (MAX_HEAD_DIM, MAX_BLOCK, SOFTMAX_TILE, UNIT_WORDS), "other constants than the sources'"
        self.native = native
        self.layers = layers
        self.dtype = dtype or layers[0].dtype
        self.pools = [layer.data_ptr() for layer in layers]
        self.attentions = attentions
        self.groups = groups_of_layers(attentions)  # of each layer

    def begin(self, batch: Batch) -> "NativeAttentionStep":
        return NativeAttentionStep(self, batch)


class NativeAttentionStep(AttentionStep):
    def __init__(self, attention: NativeAttention, batch: Batch) -> None:
        self.attention = attention
        self.groups = [
            NativeGroupStep(attention, attention.groups.index(group), batch, tables)
            for group, tables in enumerate(batch.groups)
        ]

    def store(self, layer: int, keys_values: Tensor) -> None:
        """Clears a block that a sequence enters first: it may leave this worker whole."""
        group = self.group_of(layer)
        tables, (tokens, vectors, dim) = group.tables, keys_values.shape
        assert (vectors, dim) == group.sizes and keys_values.dtype == self.attention.dtype
        assert keys_values.stride()[1:] == (dim, 1) and tokens == len(tables.slots)
        source, stride, slots = keys_values.data_ptr(), keys_values.stride(0), tables.slots.data_ptr()
        fresh, count = tables.fresh_blocks.data_ptr(), len(tables.fresh_blocks)
        target = self.attention.pools[layer]
        self.attention.native.baton_store(group.arguments, source, stride, slots, tokens, fresh, count, target)

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        group, (tokens, heads, dim) = self.group_of(layer), queries.shape
        assert queries.stride()[1:] == (dim, 1) and dim == group.sizes[1] and queries.dtype == self.attention.dtype
        assert tokens == len(group.tables.slots) and heads == self.attention.attentions[layer].heads
        output = queries.new_empty((tokens, heads, group.arguments.value_dim))
        source, stride = queries.data_ptr(), queries.stride(0)
        attention, place, target = self.attention.attentions[layer], self.attention.pools[layer], output.data_ptr()
        params = attention_params(attention, sinks)
        self.attention.native.baton_attend(group.prepared(attention), params, source, stride, place, target)
        return output

    def group_of(self, layer: int) -> "NativeGroupStep":
        return self.groups[self.attention.groups[layer]]


class NativeGroupStep:
    """Operator arguments of one step for the layers of one KV group."""

    def __init__(self, attention: NativeAttention, layer: int, batch: Batch, tables: GroupTables) -> None:
        self.tables = tables
        self._batch = batch
        self._native = attention.native
        self._left_out: Sequence[int] = ()
        pool, own = attention.layers[layer], attention.attentions[layer]
        quantized, blocks, dim = quantized_layer(pool, own), len(pool), layout_of(own).width
        block = pool.shape[2] if quantized is None else quantized.block
        kv_heads, vectors, value_dim = _sizes(own)
        self.sizes = kv_heads * vectors, dim
        ends = (tables.block_tables, blocks), (tables.slots, blocks * block), (tables.fresh_blocks, blocks)
        for places, end in ends:
            assert not places.numel() or (int(places.min()) >= 0 and int(places.max()) < end), "beyond the pool"
        assert tables.slots.is_contiguous() and tables.fresh_blocks.is_contiguous()
        self.arguments = AttentionArguments(
            format=DTYPE_CODES[attention.dtype],
            kv=KV_DTYPE_CODES[pool.dtype],
            kv_heads=kv_heads,
            vectors=vectors,
            dim=dim,
            value_dim=value_dim,
            block=block,
            window=own.window,
            tables=tables.block_tables.data_ptr(),
            table_stride=tables.block_tables.stride(0),
        )
        if batch.trees is not None:
            assert not own.window or batch.trees.deepest < own.window, "a tree deeper than a window"
            self._tree_masks = torch.stack((batch.positions, batch.trees.lasts, batch.trees.bits), 1)
            self.arguments.tree_masks = self._tree_masks.data_ptr()

    def prepared(self, attention: AnyAttention, left_out: Sequence[int] = ()) -> AttentionArguments:
        """Returns the arguments for layers with this attention, valid as long as this step.

        Units are planned when the first layer shows how many heads share a KV head; sequences in `left_out` get none.
        """
        arguments = self.arguments
        shared = attention.heads // arguments.kv_heads
        if (shared, left_out) != (arguments.shared, self._left_out):
            arguments.shared, self._left_out = shared, left_out
            lengths = self._batch.kv_lengths.copy()
            lengths[list(left_out)] = 0
            queries, threads = self._batch.query_lengths, torch.get_num_threads()
            self._units, self._partials = plan(self._native, arguments, queries, lengths, threads)
            arguments.units = self._units.ctypes.data
            arguments.unit_count = len(self._units)
            arguments.partials = self._partials.data_ptr() if self._partials.numel() else None
        return arguments


def plan(
    native: ctypes.CDLL, arguments: AttentionArguments, queries: Ints, lengths: Ints, threads: int
) -> tuple[Ints, Tensor]:
    """Splits a step into units that threads take one after the other; sequences of length 0 are left out.

    Returns `[units, 8]` (`struct unit` in attention_step.h), and a buffer `[floats]` for the states of rows.
    """
    floats = ctypes.c_int64()
    works = queries.ctypes.data, lengths.ctypes.data, len(queries), threads
    count = native.baton_plan(arguments, *works, None, ctypes.byref(floats))
    units = np.empty((count, UNIT_WORDS), np.int64)
    native.baton_plan(arguments, *works, units.ctypes.data, ctypes.byref(floats))
    return units, torch.empty(floats.value)
