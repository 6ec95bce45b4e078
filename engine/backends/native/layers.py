"""Runs the transformer's layers in native code: two calls for each layer, in buffers kept from step to step.

Tensor-parallel ranks sum the outputs of attention and of the MLP between the calls.
"""

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from engine.backends.native.attention import NativeAttentionStep, NativeGroupStep, attention_params
from engine.backends.native.latent import LatentBuffers, latent_arguments
from engine.backends.native.latent_forms import LatentForms
from engine.backends.native.library import (
    ACTIVATION_CODES,
    DTYPE_CODES,
    NORM_CODES,
    ExpertsArguments,
    LatentArguments,
    LayerArguments,
    LinearArguments,
    Rotation,
    StepArguments,
)
from engine.backends.native.linear_layers.adapted import AdapterBuffers, NativeAdapted
from engine.backends.native.linear_layers.experts import ExpertsBuffers, layer_arguments, local_linear
from engine.backends.native.linear_layers.linear import NativeLinear
from engine.model.batch import Batch
from engine.model.config import DenseMLP, ExpertsMLP, HeadAttention, LatentAttention, LayerConfig, ModelConfig, heads_of
from engine.model.kv_layout import AnyAttention
from engine.model.layers.dense import DenseWeights
from engine.model.layers.experts import ExpertsWeights
from engine.model.layers.latent import LatentWeights
from engine.model.layers.layer import HeadWeights, LayerWeights
from engine.model.layers.tensor_parallel import ParallelExperts, RowParallelLinear
from engine.model.model import Stored
from engine.model.rope import Rope, inverse_frequencies


class NativeLayers:
    def __init__(
        self,
        native: ctypes.CDLL,
        config: ModelConfig,
        layers: Sequence[LayerWeights[NativeLinear]],
        norm: Tensor | None,
        dtype: torch.dtype,
        first: int = 0,
    ) -> None:
        self._native = native
        self._config = config
        self._dtype = dtype
        self._norm = norm
        self._first = first  # of the pool's layers
        self._layers = layers  # keeps the weights alive
        self._shapes = [layer.config for layer in layers]  # of this rank
        self._is_divided = any(isinstance(layer.attention.output, RowParallelLinear) for layer in layers)
        self._arguments = [_arguments(layer, config.ropes, dtype) for layer in layers]
        for product, then in pairwise(product for layer in self._arguments for product in _products(layer)):
            product.then = _first(then)
        self._frequencies = [inverse_frequencies(rope) for rope in config.ropes]
        self._rotations = (Rotation * len(config.ropes))(*(Rotation(dim=rope.dim) for rope in config.ropes))
        self._adapters = _adapter_buffers(layers, dtype)
        self._buffers: dict[str, Tensor] = {}
        self._step = StepArguments(DTYPE_CODES[dtype], eps=config.norm_eps, rotations=self._rotations)
        self._reserve(1)

    def forward(self, hidden: Tensor, batch: Batch, step: NativeAttentionStep, stored: Stored) -> Tensor:
        assert hidden.dtype == self._dtype and hidden.is_contiguous()
        native, arguments = self._native, self._step
        self._reserve(len(hidden))
        self._begin(hidden, batch)
        last = len(self._arguments) - 1
        entered: NativeGroupStep | None = None
        pools = step.attention.pools[self._first : self._first + len(self._arguments)]
        for index, (layer, pool) in enumerate(zip(self._arguments, pools, strict=True)):
            group = step.group_of(self._first + index)
            if group is not entered:
                self._enter(batch, group, self._shapes[index].attention)
                entered = group
            native.baton_layer_store(layer, arguments, index == 0, pool)
            stored(self._first + index)
            rows = len(batch.logit_rows) if index == last else len(hidden)
            buffer = self._use_shared_buffer(self._layers[index].attention.output, rows)
            native.baton_layer_attend(layer, arguments, index == last, pool)
            if self._is_divided:
                self._reduce_and_compute_mlp(index, rows, buffer)
        rows, width = len(batch.logit_rows), hidden.shape[1]
        normed = hidden.new_empty((rows, width))
        kind, eps = DTYPE_CODES[self._dtype], self._config.norm_eps
        weight = None if self._norm is None else self._norm.data_ptr()
        native.baton_add_norm(kind, arguments.hidden, arguments.change, weight, rows, width, eps, normed.data_ptr())
        return normed

    def _use_shared_buffer(self, linear: NativeLinear | RowParallelLinear | None, rows: int) -> Tensor | None:
        """Lets the next call of the operators write the output of `linear` into a buffer that all ranks can read.

        Returns the buffer. Without one the output goes into `change`, and the result is None.
        """
        buffer: Tensor | None = None
        if isinstance(linear, RowParallelLinear):
            buffer = linear.shared_buffer(rows, self._config.hidden_size)
        self._step.part = self._step.change if buffer is None else buffer.data_ptr()
        return buffer

    def _reduce_and_compute_mlp(self, index: int, rows: int, buffer: Tensor | None) -> None:
        """Ends a layer of several ranks: sums attention's output, in `buffer` or `change`, and computes the MLP."""
        if not rows:
            return
        layer, arguments = self._layers[index], self._step
        self._all_reduce(layer.attention.output, rows, buffer)
        buffer = self._use_shared_buffer(layer.mlp.down if isinstance(layer.mlp, DenseWeights) else None, rows)
        self._native.baton_layer_mlp(self._arguments[index], arguments, rows)
        if isinstance(layer.mlp, DenseWeights):
            self._all_reduce(layer.mlp.down, rows, buffer)
        else:
            self._all_reduce_experts(layer.mlp, self._arguments[index].experts, rows)
        if layer.mlp_post_norm is not None:
            change, norm, width = arguments.change, layer.mlp_post_norm.data_ptr(), self._config.hidden_size
            self._native.baton_add_norm(arguments.format, change, None, norm, rows, width, arguments.eps, change)

    def _all_reduce(self, linear: NativeLinear | RowParallelLinear, rows: int, buffer: Tensor | None) -> None:
        """Writes the sum of all ranks' outputs of `linear` into `change`."""
        assert isinstance(linear, RowParallelLinear)
        if buffer is not None:
            parts = linear.shared_parts(buffer)
            addresses = (ctypes.c_void_p * len(parts))(*(part.data_ptr() for part in parts))
            self._native.baton_add_parts(self._step.format, addresses, len(parts), buffer.numel(), self._step.change)
            return
        change, width = self._buffers["change"].view(-1), self._config.hidden_size
        part = change.view(torch.float32)[: rows * width].view(rows, width)
        self._store_change(linear.reduced(part, self._dtype))

    def _store_change(self, sums: Tensor) -> None:
        """Rounds `sums` `[rows, hidden]` to the model's format in `change`, whose memory may hold the sums already."""
        change = self._buffers["change"].view(-1)
        if sums.dtype != self._dtype or sums.data_ptr() != change.data_ptr():
            change[: sums.numel()] = sums.to(self._dtype).view(-1)

    def _all_reduce_experts(self, mlp: ExpertsWeights[NativeLinear], experts: Any, rows: int) -> None:
        """Does the same for a mixture; outputs of the experts and of the shared expert are two sums in one exchange."""
        assert isinstance(mlp.experts, ParallelExperts)
        change, width = self._buffers["change"].view(-1), self._config.hidden_size
        count = 1 if mlp.shared is None else 2
        parts = change.view(torch.float32)[: count * rows * width].view(count, rows, width)
        sums = mlp.experts.all_reduce(parts)
        if mlp.shared is None:
            self._store_change(sums)
            return
        total, shared = sums[0].clone(), sums[1].to(self._dtype)  # the sums may lie in `change`
        step = self._step
        self._native.baton_add_shared(
            experts, step.experts_buffers, shared.data_ptr(), total.data_ptr(), rows, step.change
        )

    def _enter(self, batch: Batch, group: NativeGroupStep, attention: AnyAttention) -> None:
        arguments, tables = self._step, group.tables
        expanding: Sequence[int] = ()
        if isinstance(attention, LatentAttention):
            forms = LatentForms(self._native, batch, group, attention, self._dtype)
            self._latent_buffers.prepare(forms, attention)
            expanding = forms.expanding
        arguments.attention = ctypes.pointer(group.prepared(attention, expanding))
        arguments.slots = tables.slots.data_ptr()
        arguments.fresh_count, arguments.fresh = len(tables.fresh_blocks), tables.fresh_blocks.data_ptr()

    def _begin(self, hidden: Tensor, batch: Batch) -> None:
        arguments = self._step
        assert batch.logit_rows.is_contiguous()
        arguments.tokens = len(hidden)
        arguments.row_count, arguments.rows = len(batch.logit_rows), batch.logit_rows.data_ptr()
        arguments.hidden = hidden.data_ptr()
        arguments.adapters = None
        if batch.adapters is not None:
            assert self._adapters is not None
            arguments.adapters = ctypes.pointer(self._adapters.arguments(batch.adapters))
        positions = batch.positions.data_ptr()
        for rope, frequencies, angles in zip(self._config.ropes, self._frequencies, self._rotations, strict=True):
            self._native.baton_angles(
                positions,
                len(hidden),
                frequencies.data_ptr(),
                len(frequencies),
                rope.magnitude,
                angles.cosine,
                angles.sine,
            )

    def _reserve(self, tokens: int) -> None:
        if self._buffers and len(self._buffers["change"]) >= tokens:
            return
        rows = 1 << (tokens - 1).bit_length()
        widths = dict.fromkeys(("change", "normed"), self._config.hidden_size)
        for layer in dict.fromkeys(self._shapes):
            for name, width in _widths(layer).items():
                widths[name] = max(width, widths.get(name, 0))
        if self._is_divided:  # fp32 parts, of the experts and then of the shared expert
            shares = any(isinstance(layer.mlp, ExpertsMLP) and layer.mlp.shared for layer in self._shapes)
            widths["change"] *= (1 + shares) * torch.float32.itemsize // self._dtype.itemsize
        self._buffers = {name: torch.empty((rows, width), dtype=self._dtype) for name, width in widths.items()}
        for name, tensor in self._buffers.items():
            setattr(self._step, name, tensor.data_ptr())
        for number, angles in enumerate(self._rotations):
            for name in ("cosine", "sine"):
                turns = self._buffers[f"{name} {number}"] = torch.empty((rows, angles.dim // 2))
                setattr(angles, name, turns.data_ptr())
        mixtures = [layer.mlp for layer in self._shapes if isinstance(layer.mlp, ExpertsMLP)]
        if mixtures:
            self._experts_buffers = ExpertsBuffers(rows, mixtures, self._config.hidden_size, self._dtype)
            self._step.experts_buffers = ctypes.pointer(self._experts_buffers.arguments)
        latents = [layer.attention for layer in self._shapes if isinstance(layer.attention, LatentAttention)]
        if latents:
            self._latent_buffers = LatentBuffers(rows, latents, self._dtype)
            self._step.latent_buffers = ctypes.pointer(self._latent_buffers.arguments)


def _adapter_buffers(layers: Sequence[LayerWeights[NativeLinear]], dtype: torch.dtype) -> AdapterBuffers | None:
    products = [layer.attention.query_key_value for layer in layers if isinstance(layer.attention, HeadWeights)]
    products += [layer.mlp.gate_up for layer in layers if isinstance(layer.mlp, DenseWeights)]
    adapted = next((product for product in products if isinstance(product, NativeAdapted)), None)
    return AdapterBuffers(adapted.adapting, dtype) if adapted is not None else None


def _widths(layer: LayerConfig) -> dict[str, int]:
    attention, mlp = layer.attention, layer.mlp
    dense = mlp.intermediate if isinstance(mlp, DenseMLP) else 0
    if isinstance(attention, LatentAttention):
        query = attention.query_rank or attention.heads * (attention.nope_dim + attention.rope_dim)
        first, attended = query + attention.latent_rank + attention.rope_dim, attention.heads * attention.value_dim
    else:
        attended = attention.heads * attention.head_dim
        first = attended + 2 * attention.kv_heads * attention.head_dim
    return {"heads": first, "attended": attended, "gate_up": 2 * dense, "gated": dense}


def _arguments(layer: LayerWeights[NativeLinear], ropes: Sequence[Rope], dtype: torch.dtype) -> LayerArguments:
    weights, mlp, attention = layer.attention, layer.mlp, layer.config.attention
    norms = {
        "attention_norm": layer.attention_norm,
        "attention_post_norm": layer.attention_post_norm,
        "mlp_norm": layer.mlp_norm,
        "mlp_post_norm": layer.mlp_post_norm,
    }
    arguments = LayerArguments(
        **{name: norm.data_ptr() for name, norm in norms.items() if norm is not None},
        attention_output=local_linear(weights.output).arguments,
        rotation=-1 if attention.rope is None else ropes.index(attention.rope),
        activation=ACTIVATION_CODES[layer.config.mlp.activation],
    )
    if isinstance(weights, LatentWeights):
        assert isinstance(attention, LatentAttention)
        arguments.query_key_value = weights.down.arguments
        arguments.params = attention_params(attention, None)
        arguments.latent = ctypes.pointer(latent_arguments(weights, attention, dtype))
    else:
        _describe_heads(arguments, weights, heads_of(layer.config))
    if isinstance(mlp, ExpertsWeights):
        arguments.experts = ctypes.pointer(layer_arguments(mlp))
    else:
        arguments.gate_up, arguments.down = mlp.gate_up.arguments, local_linear(mlp.down).arguments
    return arguments


def _describe_heads(arguments: LayerArguments, weights: HeadWeights[NativeLinear], attention: HeadAttention) -> None:
    arguments.query_key_value = weights.query_key_value.arguments
    arguments.query_key_norm = None if weights.query_key_norm is None else weights.query_key_norm.data_ptr()
    arguments.params = attention_params(attention, weights.sinks)
    arguments.queries, arguments.keys, arguments.dim = attention.heads, attention.kv_heads, attention.head_dim
    arguments.norm = NORM_CODES[attention.norm]


Products = LinearArguments | ExpertsArguments | LatentArguments
"""A matrix product of a layer, or the products of its experts or of latent attention, which one operator computes."""


def _products(layer: LayerArguments) -> list[Products]:
    latent: list[Products] = []
    if layer.latent:
        query = layer.latent.contents.query
        latent = [*([LinearArguments.from_address(query)] if query else []), layer.latent.contents]
    mlp = [layer.experts.contents] if layer.experts else [layer.gate_up, layer.down]
    return [layer.query_key_value, *latent, layer.attention_output, *mlp]


def _first(products: Products) -> int | None:
    if isinstance(products, LinearArguments):
        return ctypes.addressof(products)
    first: int | None = products.shared_gate_up if isinstance(products, ExpertsArguments) else products.keys
    return first
