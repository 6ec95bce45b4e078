"""The native operators between a layer's products, one call each, so that tests can look at what each gives.

The engine calls them a layer at a time, in C.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.backends.native.library import ACTIVATION_CODES, DTYPE_CODES, NORM_CODES, Heads, Rotation
from engine.backends.native.linear_layers.experts import router_arguments
from engine.model.attention import AttentionStep
from engine.model.config import Activation, ExpertsMLP, HeadAttention, LatentAttention
from engine.model.elementwise import Angles, Elementwise
from engine.model.rope import Rope, inverse_frequencies


class NativeElementwise(Elementwise[AttentionStep]):
    """See `engine.model.elementwise.Elementwise`."""

    def __init__(self, native: ctypes.CDLL, ropes: Sequence[Rope], dtype: torch.dtype, eps: float) -> None:
        self._native = native
        self._format = DTYPE_CODES[dtype]
        self._dtype = dtype
        self._frequencies = {rope: inverse_frequencies(rope) for rope in ropes}
        self._eps = eps

    def add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        assert weight is None or (weight.is_contiguous() and weight.dtype == torch.float32)
        assert hidden.is_contiguous() and hidden.dtype == self._dtype
        assert change is None or (change.shape == hidden.shape and change.is_contiguous())
        rows, width = hidden.shape
        normed = torch.empty_like(hidden)
        added, by = (None if each is None else each.data_ptr() for each in (change, weight))
        self._native.baton_add_norm(
            self._format, hidden.data_ptr(), added, by, rows, width, self._eps, normed.data_ptr()
        )
        return hidden, normed

    def angles(self, positions: Tensor, rope: Rope) -> Angles:
        assert positions.is_contiguous() and positions.dtype == torch.int64
        frequencies = self._frequencies[rope]
        shape = (len(positions), len(frequencies))
        cosine, sine = torch.empty(shape), torch.empty(shape)
        self._native.baton_angles(
            positions.data_ptr(),
            shape[0],
            frequencies.data_ptr(),
            shape[1],
            rope.magnitude,
            cosine.data_ptr(),
            sine.data_ptr(),
        )
        return cosine, sine

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
        tokens, count, dim = heads.shape
        assert heads.stride()[1:] == (dim, 1) and heads.dtype == self._dtype
        assert weight is None or (weight.shape == (count, dim) and weight.dtype == torch.float32)
        assert weight is None or weight.is_contiguous()
        shape = Heads(
            queries=attention.heads,
            keys=attention.kv_heads,
            dim=dim,
            stride=heads.stride(0),
            tokens=tokens,
            norm=NORM_CODES[attention.norm],
            weight=None if weight is None else weight.data_ptr(),
            eps=self._eps,
        )
        rotation = None
        if angles is not None:
            cosine, sine = angles
            rotation = Rotation(dim=2 * cosine.shape[1], cosine=cosine.data_ptr(), sine=sine.data_ptr())
        self._native.baton_rotate(self._format, shape, rotation, heads.data_ptr())

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
        first, key = down.shape[1] - attention.latent_rank - attention.rope_dim, down.shape[1] - attention.rope_dim
        parts = [(down[:, first:key], norm), *([] if query_norm is None else [(down[:, :first], query_norm)])]
        for part, weight in parts:
            heads = Heads(
                1,
                0,
                part.shape[1],
                part.stride(0),
                len(part),
                NORM_CODES["head"],
                weight.data_ptr(),
                attention.norm_eps,
            )
            self._native.baton_rotate(self._format, heads, None, part.data_ptr())
        self._turn(down[:, None, key:], angles)
        step.store(layer, down[:, first:].unsqueeze(1))
        return down[:, :first]

    def rotate_queries(self, queries: Tensor, angles: Angles, attention: LatentAttention) -> Tensor:
        self._turn(queries[..., attention.nope_dim :], angles)
        return queries

    def _turn(self, heads: Tensor, angles: Angles) -> None:
        tokens, count, dim = heads.shape
        cosine, sine = angles
        rotation = Rotation(dim, cosine.data_ptr(), sine.data_ptr())
        described = Heads(count, 0, heads.stride(1), heads.stride(0), tokens, NORM_CODES["none"], None, 0)
        self._native.baton_rotate(self._format, described, rotation, heads.data_ptr())

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        assert gate_up.is_contiguous() and gate_up.dtype == self._dtype
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        found = gate_up.new_empty((rows, width))
        self._native.baton_gate(
            self._format, ACTIVATION_CODES[activation], gate_up.data_ptr(), rows, width, found.data_ptr()
        )
        return found

    def route(self, logits: Tensor, mlp: ExpertsMLP, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        return routed(self._native, logits, mlp, correction)


def routed(native: ctypes.CDLL, logits: Tensor, mlp: ExpertsMLP, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """See `engine.model.elementwise.Elementwise.route`."""
    assert logits.shape[1] == mlp.experts and (correction is None or correction.dtype == torch.float32)
    arguments, scores = router_arguments(mlp), logits.float().clone()
    arguments.correction = None if correction is None else correction.data_ptr()
    chosen = torch.empty((len(logits), mlp.used), dtype=torch.int32)
    shares = torch.empty((len(logits), mlp.used))
    native.baton_route(arguments, scores.data_ptr(), len(scores), chosen.data_ptr(), shares.data_ptr())
    return chosen, shares
