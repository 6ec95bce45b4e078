"""Adds, norms, rotates and gates between a layer's matrix products, by PyTorch's operators, on any device."""

from torch import Tensor
from torch.nn import functional

from engine.model.attention import AttentionStep
from engine.model.elementwise import Angles
from engine.model.rope import Rotary, rotate_


class ReferenceElementwise:
    """See `engine.model.elementwise.Elementwise`. Heads are rotated in place; attention stores them."""

    def __init__(self, rotary: Rotary, eps: float) -> None:
        self._rotary = rotary
        self._eps = eps

    def add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        if change is not None:
            hidden = hidden + change
        return hidden, self._normed(hidden, weight)

    def angles(self, positions: Tensor) -> Angles:
        return self._rotary.angles(positions)

    def rotate_and_store(
        self, heads: Tensor, angles: Angles, weight: Tensor | None, step: AttentionStep, layer: int, *, query_heads: int
    ) -> Tensor:
        queries, keys_values = heads[:, :query_heads], heads[:, query_heads:]
        self.rotate(heads[:, : query_heads + keys_values.shape[1] // 2], angles, weight)
        step.store(layer, keys_values)
        return queries

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
