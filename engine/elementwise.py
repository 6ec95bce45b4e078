"""What a layer does between its matrix products: residual and norm, rotation, gate. By PyTorch, or by native operators.

PyTorch's operators are a dozen for each layer, and where an element lies in a batch decides whether it meets a vector
instruction or its scalar twin, which round differently. The native ones are three, and treat every row alike.
"""

import ctypes
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.native.library import FORMATS
from engine.rope import Rope, Rotary, inverse_frequencies, rotate_

Angles = tuple[Tensor, Tensor]
"""Cosine and sine of a step's positions, as the one that made them takes them."""


class Elementwise(Protocol):
    """Norms are root mean square norms over the last axis (https://arxiv.org/abs/1910.07467), in fp32 inside."""

    def add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        """`hidden + change` and its norm, all `[rows, hidden]`; `hidden` is the caller's no more."""
        ...

    def angles(self, positions: Tensor) -> Angles:
        """For int64 `positions` `[tokens]`; once per step."""
        ...

    def rotate(self, heads: Tensor, angles: Angles, weight: Tensor | None) -> None:
        """Rotates `heads` `[tokens, heads, dim]` in place, normed by a `weight` `[heads, dim]` first."""
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(first half) * second half, `[rows, width]` of `[rows, 2 x width]`."""
        ...


class TorchElementwise:
    """By PyTorch's operators, on any device."""

    def __init__(self, rotary: Rotary, eps: float) -> None:
        self._rotary = rotary
        self._eps = eps

    def add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        if change is not None:
            hidden = hidden + change
        return hidden, self._normed(hidden, weight)

    def angles(self, positions: Tensor) -> Angles:
        return self._rotary.angles(positions)

    def rotate(self, heads: Tensor, angles: Angles, weight: Tensor | None) -> None:
        if weight is not None:
            heads.copy_(self._normed(heads, None) * weight)
        rotate_(heads, *angles)

    def gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate).mul_(up)

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self._eps)


class NativeElementwise:
    """By native operators, on a CPU in fp32 or bf16."""

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
        self._native.baton_add_norm(
            *(self._format, hidden.data_ptr(), None if change is None else change.data_ptr(), weight.data_ptr()),
            *(rows, width, self._eps, normed.data_ptr()),
        )
        return hidden, normed

    def angles(self, positions: Tensor) -> Angles:
        assert positions.is_contiguous() and positions.dtype == torch.int64
        shape = (len(positions), len(self._frequencies))
        cosine, sine = torch.empty(shape), torch.empty(shape)
        self._native.baton_angles(
            *(positions.data_ptr(), shape[0], self._frequencies.data_ptr(), shape[1], self._magnitude),
            *(cosine.data_ptr(), sine.data_ptr()),
        )
        return cosine, sine

    def rotate(self, heads: Tensor, angles: Angles, weight: Tensor | None) -> None:
        tokens, count, dim = heads.shape
        cosine, sine = angles
        assert heads.stride()[1:] == (dim, 1) and heads.dtype == self._dtype and cosine.shape == (tokens, dim // 2)
        assert weight is None or (weight.shape == (count, dim) and weight.is_contiguous())
        self._native.baton_rotate(
            *(self._format, heads.data_ptr(), heads.stride(0), tokens, count, dim, cosine.data_ptr(), sine.data_ptr()),
            *(None if weight is None else weight.data_ptr(), self._eps),
        )

    def gate(self, gate_up: Tensor) -> Tensor:
        assert gate_up.is_contiguous() and gate_up.dtype == self._dtype
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        found = gate_up.new_empty((rows, width))
        self._native.baton_gate(self._format, gate_up.data_ptr(), rows, width, found.data_ptr())
        return found
