"""Runs the transformer's layers in native code: two calls for each layer, in buffers kept from step to step.

Ranks add their parts of a layer's two outputs between calls.
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
from engine.backends.native.linear_layers.adapted import AdapterRoom, NativeAdapted
from engine.backends.native.linear_layers.experts import ExpertsBuffers, layer_arguments, own_linear
from engine.backends.native.linear_layers.linear import NativeLinear
from engine.model.batch import Batch
from engine.model.config import DenseMLP, ExpertsMLP, HeadAttention, LatentAttention, LayerConfig, ModelConfig, heads_of
from engine.model.kv_layout import AnyAttention
from engine.model.layers.dense import DenseWeights
from engine.model.layers.experts import ExpertsWeights
from engine.model.layers.latent import LatentWeights
from engine.model.layers.layer import HeadWeights, LayerWeights
from engine.model.layers.ranks import RankExperts, SummedLinear
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
        self._is_cut = any(isinstance(layer.attention.output, SummedLinear) for layer in layers)
        self._arguments = [_arguments(layer, config.ropes, dtype) for layer in layers]
        for product, then in pairwise(product for layer in self._arguments for product in _products(layer)):
            product.then = _first(then)
        self._frequencies = [inverse_frequencies(rope) for rope in config.ropes]
        self._rotations = (Rotation * len(config.ropes))(*(Rotation(dim=rope.dim) for rope in config.ropes))
        self._adapters = _adapter_room(layers, dtype)
        self._room: dict[str, Tensor] = {}
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
            room = self._aim(self._layers[index].attention.output, rows)
            native.baton_layer_attend(layer, arguments, index == last, pool)
            if self._is_cut:
                self._sum_parts(index, rows, room)
        rows, width = len(batch.logit_rows), hidden.shape[1]
        normed = hidden.new_empty((rows, width))
        kind, eps = DTYPE_CODES[self._dtype], self._config.norm_eps
        weight = None if self._norm is None else self._norm.data_ptr()
        native.baton_add_norm(kind, arguments.hidden, arguments.change, weight, rows, width, eps, normed.data_ptr())
        return normed

    def _aim(self, linear: NativeLinear | SummedLinear | None, rows: int) -> Tensor | None:
        """Has the next product of this layer put its result into memory of all ranks, and returns that, if it can.

        Else the result goes into `change`.
        """
        room = linear.room(rows, self._config.hidden_size) if isinstance(linear, SummedLinear) else None
        self._step.part = self._step.change if room is None else room.data_ptr()
        return room

    def _sum_parts(self, index: int, rows: int, room: Tensor | None) -> None:
        """Ends a layer of which `room`, or `change`, has this rank's part of attention's output."""
        if not rows:
            return
        layer, arguments = self._layers[index], self._step
        self._sum(layer.attention.output, rows, room)
        room = self._aim(layer.mlp.down if isinstance(layer.mlp, DenseWeights) else None, rows)
        self._native.baton_layer_mlp(self._arguments[index], arguments, rows)
        if isinstance(layer.mlp, DenseWeights):
            self._sum(layer.mlp.down, rows, room)
        else:
            self._sum_experts(layer.mlp, self._arguments[index].experts, rows)
        if layer.mlp_post_norm is not None:
            change, norm, width = arguments.change, layer.mlp_post_norm.data_ptr(), self._config.hidden_size
            self._native.baton_add_norm(arguments.format, change, None, norm, rows, width, arguments.eps, change)

    def _sum(self, linear: NativeLinear | SummedLinear, rows: int, room: Tensor | None) -> None:
        """Puts the sum over all ranks into `change`."""
        assert isinstance(linear, SummedLinear)
        if room is not None:
            parts = linear.parts(room)
            places = (ctypes.c_void_p * len(parts))(*(part.data_ptr() for part in parts))
            change = self._step.change
            self._native.baton_add_parts(self._step.format, places, len(parts), room.numel(), change)
            return
        change, width = self._room["change"].view(-1), self._config.hidden_size
        part = change.view(torch.float32)[: rows * width].view(rows, width)
        self._put(linear.finished(part, self._dtype))

    def _put(self, sums: Tensor) -> None:
        """Rounds sums to the model's format, as `change`, where fp32 sums may be already."""
        change = self._room["change"].view(-1)
        if sums.dtype != self._dtype or sums.data_ptr() != change.data_ptr():
            change[: sums.numel()] = sums.to(self._dtype).view(-1)

    def _sum_experts(self, mlp: ExpertsWeights[NativeLinear], own: Any, rows: int) -> None:
        """Does the same for a mixture, whose experts and shared expert are summed apart, in one exchange."""
        assert isinstance(mlp.experts, RankExperts)
        change, width = self._room["change"].view(-1), self._config.hidden_size
        count = 1 if mlp.shared is None else 2
        parts = change.view(torch.float32)[: count * rows * width].view(count, rows, width)
        sums = mlp.experts.summed(parts)
        if mlp.shared is None:
            self._put(sums)
            return
        total, shared = sums[0].clone(), sums[1].to(self._dtype)  # `change` may be where the sums are
        room = self._step.experts_room
        self._native.baton_add_shared(own, room, shared.data_ptr(), total.data_ptr(), rows, self._step.change)

    def _enter(self, batch: Batch, group: NativeGroupStep, attention: AnyAttention) -> None:
        arguments, tables = self._step, group.tables
        expanding: Sequence[int] = ()
        if isinstance(attention, LatentAttention):
            forms = LatentForms(self._native, batch, group, attention, self._dtype)
            self._latent_room.take(forms, attention)
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
            arguments.adapters = ctypes.pointer(self._adapters.of(batch.adapters))
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
        if self._room and len(self._room["change"]) >= tokens:
            return
        rows = 1 << (tokens - 1).bit_length()
        widths = dict.fromkeys(("change", "normed"), self._config.hidden_size)
        for layer in dict.fromkeys(self._shapes):
            for name, width in _widths(layer).items():
                widths[name] = max(width, widths.get(name, 0))
        if self._is_cut:  # parts are fp32, and the shared expert's are behind those of the experts
            shares = any(isinstance(layer.mlp, ExpertsMLP) and layer.mlp.shared for layer in self._shapes)
            widths["change"] *= (1 + shares) * torch.float32.itemsize // self._dtype.itemsize
        self._room = {name: torch.empty((rows, width), dtype=self._dtype) for name, width in widths.items()}
        for name, tensor in self._room.items():
            setattr(self._step, name, tensor.data_ptr())
        for number, angles in enumerate(self._rotations):
            for name in ("cosine", "sine"):
                turns = self._room[f"{name} {number}"] = torch.empty((rows, angles.dim // 2))
                setattr(angles, name, turns.data_ptr())
        mixtures = [layer.mlp for layer in self._shapes if isinstance(layer.mlp, ExpertsMLP)]
        if mixtures:
            self._experts_room = ExpertsBuffers(rows, mixtures, self._config.hidden_size, self._dtype)
            self._step.experts_room = ctypes.pointer(self._experts_room.arguments)
        latents = [layer.attention for layer in self._shapes if isinstance(layer.attention, LatentAttention)]
        if latents:
            self._latent_room = LatentBuffers(rows, latents, self._dtype)
            self._step.latent_room = ctypes.pointer(self._latent_room.arguments)


def _adapter_room(layers: Sequence[LayerWeights[NativeLinear]], dtype: torch.dtype) -> AdapterRoom | None:
    products = [layer.attention.query_key_value for layer in layers if isinstance(layer.attention, HeadWeights)]
    products += [layer.mlp.gate_up for layer in layers if isinstance(layer.mlp, DenseWeights)]
    adapted = next((product for product in products if isinstance(product, NativeAdapted)), None)
    return AdapterRoom(adapted.adapting, dtype) if adapted is not None else None


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
        attention_output=own_linear(weights.output).arguments,
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
        arguments.gate_up, arguments.down = mlp.gate_up.arguments, own_linear(mlp.down).arguments
    return arguments


def _describe_heads(arguments: LayerArguments, weights: HeadWeights[NativeLinear], attention: HeadAttention) -> None:
    arguments.query_key_value = weights.query_key_value.arguments
    arguments.query_key_norm = None if weights.query_key_norm is None else weights.query_key_norm.data_ptr()
    arguments.params = attention_params(attention, weights.sinks)
    arguments.queries, arguments.keys, arguments.dim = attention.heads, attention.kv_heads, attention.head_dim
    arguments.norm = NORM_CODES[attention.norm]


Products = LinearArguments | ExpertsArguments | LatentArguments
"""One product, or several that are computed at once."""


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
