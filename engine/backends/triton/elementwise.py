"""Adds, norms, rotates and gates between a layer's matrix products, by one Triton kernel each.

With attention a layer is five launches and four matrix products, six and four where attention may be cut: two norms,
one rotation, one gate, and attention's kernel, behind which a second one joins the parts. A step of decodes and chunks
launches attention for either.

Importing this module loads Triton.
"""

from collections.abc import Mapping

from torch import Tensor

from engine.backends.reference.routing import route
from engine.backends.triton.attention import TritonAttentionStep
from engine.model.config import Activation, ExpertsMLP, HeadAttention
from engine.model.elementwise import Angles
from engine.model.rope import Rope
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_and_store import rope_and_store
from kernels.silu_and_mul import silu_and_mul


class TritonElementwise:
    """See `engine.model.elementwise.Elementwise`."""

    def __init__(self, tables: Mapping[Rope, Tensor], eps: float) -> None:
        """`tables` are `[longest, rope.dim]` each, as `engine.model.rope.angle_table` makes them."""
        self._tables = tables
        self._eps = eps

    def add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        if weight is None:
            hidden = hidden if change is None else hidden.add_(change)
            return hidden, hidden
        if change is None:
            return hidden, rms_norm(hidden, weight, self._eps)
        return hidden, add_rms_norm(hidden, change, weight, self._eps)  # the sum is made in place

    def angles(self, positions: Tensor, rope: Rope) -> Angles:
        return positions, self._tables[rope]

    def rotate_and_store(
        self,
        heads: Tensor,
        angles: Angles | None,
        weight: Tensor | None,
        step: TritonAttentionStep,
        layer: int,
        attention: HeadAttention,
    ) -> Tensor:
        assert angles is not None
        positions, table = angles
        pool, eps, queries = step.pool(layer), self._eps, attention.heads
        rope_and_store(heads, positions, step.slots, table, pool, query_heads=queries, norm_weight=weight, eps=eps)
        return heads[:, :queries]

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        assert activation == "silu"
        return silu_and_mul(gate_up)

    def route(self, logits: Tensor, mlp: ExpertsMLP, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        return route(logits, mlp, correction)
