"""Adds, norms, rotates and gates between a layer's matrix products, by one Triton kernel each.

With attention a layer is five launches and four matrix products, six and four where attention may be cut: two norms,
one rotation, one gate, and attention's kernel, behind which a second one joins the parts. A step of decodes and chunks
launches attention for either.

Importing this module loads Triton.
"""

from torch import Tensor

from engine.backends.triton.attention import TritonAttentionStep
from engine.model.elementwise import Angles
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_and_store import rope_and_store
from kernels.silu_and_mul import silu_and_mul


class TritonElementwise:
    """See `engine.model.elementwise.Elementwise`."""

    def __init__(self, angle_table: Tensor, eps: float) -> None:
        """`angle_table` `[longest, dim]` as `engine.model.rope.angle_table` makes it."""
        self._angle_table = angle_table
        self._eps = eps

    def add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        if change is None:
            return hidden, rms_norm(hidden, weight, self._eps)
        return hidden, add_rms_norm(hidden, change, weight, self._eps)  # the sum is made in place

    def angles(self, positions: Tensor) -> Angles:
        return positions, self._angle_table

    def rotate_and_store(
        self,
        heads: Tensor,
        angles: Angles,
        weight: Tensor | None,
        step: TritonAttentionStep,
        layer: int,
        *,
        query_heads: int,
    ) -> Tensor:
        positions, table = angles
        pool, eps = step.pool(layer), self._eps
        rope_and_store(heads, positions, step.slots, table, pool, query_heads=query_heads, norm_weight=weight, eps=eps)
        return heads[:, :query_heads]

    def gate(self, gate_up: Tensor) -> Tensor:
        return silu_and_mul(gate_up)
