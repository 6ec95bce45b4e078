"""What a layer does between its matrix products and attention: residual and norm, rotation and store, gate."""

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from engine.model.attention import AttentionStep
from engine.model.rope import Rotary, rotate_

Angles = tuple[Tensor, Tensor]
"""Of a step's positions, as the one that made them takes them: cosine and sine, or positions and where to find both."""


class Elementwise(Protocol):
    """Norms are root mean square norms over the last axis (https://arxiv.org/abs/1910.07467), in fp32 inside."""

    def add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        """`hidden + change` and its norm, all `[rows, hidden]`; `hidden` is the caller's no more."""
        ...

    def angles(self, positions: Tensor) -> Angles:
        """For int64 `positions` `[tokens]`; once per step."""
        ...

    def rotate_and_store(
        self, heads: Tensor, angles: Angles, weight: Tensor | None, step: AttentionStep, layer: int, *, query_heads: int
    ) -> Tensor:
        """Rotates queries and keys, normed by a `weight` `[query_heads + kv_heads, dim]` first; stores keys and values.

        `heads` `[tokens, query_heads + 2 x kv_heads, dim]`, contiguous: queries, keys, values; the callee's to change.
        Returns the queries `[tokens, query_heads, dim]`.
        """
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(first half) * second half, `[rows, width]` of `[rows, 2 x width]`."""
        ...


class RotatesThenStores(ABC):
    """For operators that rotate in place, and leave it to attention to store."""

    @abstractmethod
    def rotate(self, heads: Tensor, angles: Angles, weight: Tensor | None) -> None:
        """Rotates `heads` `[tokens, heads, dim]` in place, normed by a `weight` `[heads, dim]` first."""

    def rotate_and_store(
        self, heads: Tensor, angles: Angles, weight: Tensor | None, step: AttentionStep, layer: int, *, query_heads: int
    ) -> Tensor:
        """See `Elementwise`."""
        queries, keys_values = heads[:, :query_heads], heads[:, query_heads:]
        self.rotate(heads[:, : query_heads + keys_values.shape[1] // 2], angles, weight)
        step.store(layer, keys_values)
        return queries


class TorchElementwise(RotatesThenStores):
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
        """Rotates `heads` `[tokens, heads, dim]` in place, normed by a `weight` `[heads, dim]` first."""
        if weight is not None:
            heads.copy_(self._normed(heads, None) * weight)
        rotate_(heads, *angles)

    def gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate).mul_(up)

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self._eps)
