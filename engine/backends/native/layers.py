"""Runs the layers of the transformer by native code: two calls a layer, in memory that is kept from step to step."""

import ctypes
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from engine.backends.native.attention import NativeAttentionStep
from engine.backends.native.library import FORMATS, LayerArguments, StepArguments
from engine.backends.native.linear import NativeLinear
from engine.model.batch import Batch
from engine.model.config import DenseMLP, ModelConfig, heads_of
from engine.model.dense import DenseWeights
from engine.model.layer import HeadWeights, Layer
from engine.model.model import Stored
from engine.model.rope import inverse_frequencies

MATRICES = ("query_key_value", "attention_output", "gate_up", "down")
"""A layer's linear layers, in the order in which they are multiplied."""


class NativeLayers:
    """See `engine.model.transformer.Layers`."""

    def __init__(
        self,
        native: ctypes.CDLL,
        config: ModelConfig,
        layers: Sequence[Layer[NativeLinear]],
        norm: Tensor,
        dtype: torch.dtype,
    ) -> None:
        self._native = native
        self._config = config
        self._dtype = dtype
        self._norm = norm
        self._layers = layers  # keeps the weights alive
        self._arguments = [_arguments(layer) for layer in layers]
        matrices = [getattr(layer, name) for layer in self._arguments for name in MATRICES]
        for matrix, then in pairwise(matrices):
            matrix.then = ctypes.addressof(then)
        attention, mlp = heads_of(config.layers[0]), config.layers[0].mlp
        assert isinstance(mlp, DenseMLP)
        self._attention, self._mlp = attention, mlp
        (self._rope,) = config.ropes
        self._frequencies = inverse_frequencies(self._rope)
        self._room: dict[str, Tensor] = {}
        rotated = attention.heads + attention.kv_heads
        self._step = StepArguments(FORMATS[dtype], attention.head_dim, rotated, eps=config.norm_eps)
        self._reserve(1)

    def forward(self, hidden: Tensor, batch: Batch, step: NativeAttentionStep, stored: Stored) -> Tensor:
        assert hidden.dtype == self._dtype and hidden.is_contiguous()
        native, arguments = self._native, self._step
        self._reserve(len(hidden))
        self._begin(hidden, batch, step)
        last = len(self._arguments) - 1
        for index, (layer, pool, window) in enumerate(zip(self._arguments, step.pools, step.windows, strict=True)):
            native.baton_layer_store(layer, arguments, index == 0, pool)
            stored(index)
            native.baton_layer_attend(layer, arguments, index == last, pool, window)
        rows, width = len(batch.logit_rows), hidden.shape[1]
        normed = hidden.new_empty((rows, width))
        kind, weight, eps = FORMATS[self._dtype], self._norm.data_ptr(), self._config.norm_eps
        native.baton_add_norm(kind, arguments.hidden, arguments.change, weight, rows, width, eps, normed.data_ptr())
        return normed

    def _begin(self, hidden: Tensor, batch: Batch, step: NativeAttentionStep) -> None:
        attention, arguments = self._attention, self._step
        assert all(each.is_contiguous() for each in (batch.slots, batch.fresh_blocks, batch.logit_rows))
        arguments.attention = ctypes.pointer(step.prepared(attention.heads // attention.kv_heads))
        arguments.tokens, arguments.slots = len(hidden), batch.slots.data_ptr()
        arguments.fresh_count, arguments.fresh = len(batch.fresh_blocks), batch.fresh_blocks.data_ptr()
        arguments.row_count, arguments.rows = len(batch.logit_rows), batch.logit_rows.data_ptr()
        arguments.hidden = hidden.data_ptr()
        positions, frequencies, half = batch.positions.data_ptr(), self._frequencies.data_ptr(), len(self._frequencies)
        cosine, sine, magnitude = arguments.cosine, arguments.sine, self._rope.magnitude
        self._native.baton_angles(positions, len(hidden), frequencies, half, magnitude, cosine, sine)

    def _reserve(self, tokens: int) -> None:
        """Makes room for a step of so many tokens; more than before is rounded up, so that it seldom grows."""
        if self._room and len(self._room["change"]) >= tokens:
            return
        attention, mlp, rows = self._attention, self._mlp, 1 << (tokens - 1).bit_length()
        heads = attention.heads * attention.head_dim
        widths = {
            "change": self._config.hidden_size,
            "normed": self._config.hidden_size,
            "heads": heads + 2 * attention.kv_heads * attention.head_dim,
            "attended": heads,
            "gate_up": 2 * mlp.intermediate,
            "gated": mlp.intermediate,
        }
        self._room = {name: torch.empty((rows, width), dtype=self._dtype) for name, width in widths.items()}
        self._room |= {name: torch.empty((rows, self._rope.dim // 2)) for name in ("cosine", "sine")}
        for name, tensor in self._room.items():
            setattr(self._step, name, tensor.data_ptr())


def _arguments(layer: Layer[NativeLinear]) -> LayerArguments:
    attention, mlp = layer.attention, layer.mlp
    assert isinstance(attention, HeadWeights) and isinstance(mlp, DenseWeights)
    assert layer.attention_norm is not None and layer.mlp_norm is not None
    return LayerArguments(
        attention_norm=layer.attention_norm.data_ptr(),
        query_key_norm=None if attention.query_key_norm is None else attention.query_key_norm.data_ptr(),
        mlp_norm=layer.mlp_norm.data_ptr(),
        query_key_value=attention.query_key_value.arguments,
        attention_output=attention.output.arguments,
        gate_up=mlp.gate_up.arguments,
        down=mlp.down.arguments,
    )
