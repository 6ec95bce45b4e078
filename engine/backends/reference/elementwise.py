"""Adds, norms, rotates and gates between a layer's matrix products, with PyTorch operators, on any device."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.backends.reference.routing import route
from engine.model.attention import AttentionStep
from engine.model.config import Activation, ExpertsMLP, HeadAttention, LatentAttention
from engine.model.elementwise import Angles, Elementwise
from engine.model.rope import Rope, Rotary, rotate_

ALPHA, MOST = 1.702, 7.0
"""Constants of gpt-oss's activation: the slope of the sigmoid, and the limit of its input."""


class ReferenceElementwise(Elementwise[AttentionStep]):
    """See `engine.model.elementwise.Elementwise`. Heads are rotated in place; attention stores them."""

    def __init__(self, ropes: Sequence[Rope], eps: float, device: torch.device, dtype: torch.dtype) -> None:
        self._rotaries = {rope: Rotary(rope, device, dtype) for rope in ropes}
        self._eps = eps

    def add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        if change is not None:
            hidden = hidden + change
        return hidden, hidden if weight is None else self._normed(hidden, weight)

    def angles(self, positions: Tensor, rope: Rope) -> Angles:
        return self._rotaries[rope].angles(positions)

    def rotate_and_store(
        self,
        heads: Tensor,
        angles: Angles | None,
        weight: Tensor | None,
        step: AttentionStep,
        layer: int,
        attention: HeadAttention,
    ) -> Tensor:
        queries, keys_values = heads[:, : attention.heads], heads[:, attention.heads :]
        self.rotate(heads[:, : attention.heads + attention.kv_heads], angles, weight, attention)
        step.store(layer, keys_values)
        return queries

    def rotate(self, heads: Tensor, angles: Angles | None, weight: Tensor | None, attention: HeadAttention) -> None:
        """Rotates queries and keys `[tokens, heads, dim]` in place, normed by a `weight` `[heads, dim]` first."""
        if weight is not None and attention.norm == "all":
            for part in (slice(0, attention.heads), slice(attention.heads, None)):
                whole = heads[:, part]
                heads[:, part] = self._normed(whole.flatten(1), weight[part].flatten()).view(whole.shape)
        elif weight is not None:
            heads.copy_(self._normed(heads, None, weight))
        if angles is not None:
            rotate_(heads, *angles)

    def store_latents(
        self,
        down: Tensor,
        angles: Angles,
        query_norm: Tensor | None,
        norm: Tensor,
        step: AttentionStep,
        layer: int,
        attention: LatentAttention,
    ) -> Tensor:
        queries, vectors = down.tensor_split([down.shape[1] - attention.latent_rank - attention.rope_dim], 1)
        latents, keys = vectors.tensor_split([attention.latent_rank], 1)
        latents.copy_(_latents_normed(latents, norm, attention))
        rotate_(keys.unsqueeze(1), *angles)
        step.store(layer, vectors.unsqueeze(1))
        return queries if query_norm is None else _latents_normed(queries, query_norm, attention)

    def rotate_queries(self, queries: Tensor, angles: Angles, attention: LatentAttention) -> Tensor:
        rotate_(queries[..., attention.nope_dim :], *angles)
        return queries

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        return gated(gate_up, activation)

    def route(self, logits: Tensor, mlp: ExpertsMLP, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        return route(logits, mlp, correction)

    def _normed(self, x: Tensor, weight: Tensor | None, factors: Tensor | None = None) -> Tensor:
        """Norms the last axis by a `weight` of its size, then multiplies by `factors` of another shape."""
        normed = functional.rms_norm(x.float(), (x.shape[-1],), weight, self._eps)
        return (normed if factors is None else normed * factors).to(x.dtype)


def _latents_normed(latents: Tensor, weight: Tensor, attention: LatentAttention) -> Tensor:
    return functional.rms_norm(latents.float(), weight.shape, weight, attention.norm_eps).to(latents.dtype)


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """Computes an MLP's activation: `[rows, width]` of `[rows, 2 x width]`, gate and up side by side."""
    gate, up = gate_up.chunk(2, -1)
    match activation:
        case "silu":
            return functional.silu(gate).mul_(up)
        case "gelu_tanh":
            return functional.gelu(gate, approximate="tanh").mul_(up)
        case "clamped_swiglu":
            gate, up = gate.clamp(max=MOST), up.clamp(-MOST, MOST)
            return (up + 1) * gate * torch.sigmoid(gate * ALPHA)
