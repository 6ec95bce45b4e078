"""The native operators between a layer's products, one call each, so that tests can look at what each gives.

The engine calls them a layer at a time, in C.
"""

import ctypes

import torch
from torch import Tensor

from engine.backends.native.library import FORMATS
from engine.model.attention import AttentionStep
from engine.model.elementwise import Angles
from engine.model.rope import Rope, inverse_frequencies


class NativeElementwise:
    """See `engine.model.elementwise.Elementwise`."""

    def __init__(self, native: ctypes.CDLL, rope: Rope, head_dim: int, dtype: torch.dtype, eps: float) -> None:
        self._native = native
        self._format = FORMATS[dtype]
        self._dtype = dtype
        self._frequencies = inverse_frequencies(rope, head_dim)
        self._magnitude = rope.magnitude
        self._eps = eps

    def add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        assert hidden.is_contiguous() and weight.is_contiguous() and hidden.dtype == weight.dtype == self._dtype
        assert change is None or (change.shape == hidden.shape and change.is_contiguous())
        rows, width = hidden.shape
        normed = torch.empty_like(hidden)
        added = None if change is None else change.data_ptr()
        self._native.baton_add_norm(
            self._format, hidden.data_ptr(), added, weight.data_ptr(), rows, width, self._eps, normed.data_ptr()
        )
        return hidden, normed

    def angles(self, positions: Tensor) -> Angles:
        assert positions.is_contiguous() and positions.dtype == torch.int64
        shape = (len(positions), len(self._frequencies))
        cosine, sine = torch.empty(shape), torch.empty(shape)
        self._native.baton_angles(
            positions.data_ptr(),
            shape[0],
            self._frequencies.data_ptr(),
            shape[1],
            self._magnitude,
            cosine.data_ptr(),
            sine.data_ptr(),
        )
        return cosine, sine

    def rotate_and_store(
        self, heads: Tensor, angles: Angles, weight: Tensor | None, step: AttentionStep, layer: int, *, query_heads: int
    ) -> Tensor:
        queries, keys_values = heads[:, :query_heads], heads[:, query_heads:]
        self.rotate(heads[:, : query_heads + keys_values.shape[1] // 2], angles, weight)
        step.store(layer, keys_values)
        return queries

    def rotate(self, heads: Tensor, angles: Angles, weight: Tensor | None) -> None:
        """Rotates `heads` `[tokens, heads, dim]` in place, normed by a `weight` `[heads, dim]` first."""
        tokens, count, dim = heads.shape
        cosine, sine = angles
        assert heads.stride()[1:] == (dim, 1) and heads.dtype == self._dtype and cosine.shape == (tokens, dim // 2)
        assert weight is None or (weight.shape == (count, dim) and weight.is_contiguous())
        self._native.baton_rotate(
            self._format,
            heads.data_ptr(),
            heads.stride(0),
            tokens,
            count,
            dim,
            cosine.data_ptr(),
            sine.data_ptr(),
            None if weight is None else weight.data_ptr(),
            self._eps,
        )

    def gate(self, gate_up: Tensor) -> Tensor:
        assert gate_up.is_contiguous() and gate_up.dtype == self._dtype
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        found = gate_up.new_empty((rows, width))
        self._native.baton_gate(self._format, gate_up.data_ptr(), rows, width, found.data_ptr())
        return found
