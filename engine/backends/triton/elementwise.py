"""Adds, norms, rotates and gates between a layer's matrix products, by one Triton kernel each.

Rows that a linear layer takes quantized are so from the norm or the gate before it.

With attention a layer is five launches and four matrix products, six and four where attention may be cut: two norms,
one rotation, one gate, and attention's kernel, behind which a second one joins the parts. A step of decodes and chunks
launches attention for either.

Importing this module loads Triton.
"""

from collections.abc import Mapping

from torch import Tensor

from engine.backends.triton.attention.attention_step import TritonAttentionStep
from engine.backends.triton.linear_layers.adapted import TritonAdapted
from engine.backends.triton.linear_layers.experts import routing_of
from engine.backends.triton.linear_layers.quantized import QuantizedLinear
from engine.backends.triton.linear_layers.routers import SplitRouter
from engine.model.config import Activation, ExpertsMLP, HeadAttention, LatentAttention
from engine.model.elementwise import Angles, Elementwise
from engine.model.layers.linear import Linear
from engine.model.rope import Rope
from kernels.gate import gate
from kernels.moe.route import route
from kernels.quantized.gate_rows import gate_rows
from kernels.quantized.norm_rows import norm_rows
from kernels.quantized.rows import RowFormat
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_and_store import rope_and_store
from kernels.rotate_queries import rotate_queries
from kernels.store_latents import store_latents


class TritonElementwise(Elementwise[TritonAttentionStep]):
    def __init__(
        self, tables: Mapping[Rope, Tensor], eps: float, routers: Mapping[Tensor, SplitRouter] | None = None
    ) -> None:
        """`tables` are `[longest, rope.dim]` each, as `engine.model.rope.angle_table` makes them.

        `routers` has the parts of routers that are split; others multiply in fp32.
        """
        self._tables = tables
        self._eps = eps
        self._routers = routers or {}

    def add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        if weight is None:
            hidden = hidden if change is None else hidden.add_(change)
            return hidden, hidden
        if change is None:
            return hidden, rms_norm(hidden, weight, self._eps)
        return hidden, add_rms_norm(hidden, change, weight, self._eps)  # the sum is made in place

    def norm_and_multiply(
        self, hidden: Tensor, change: Tensor | None, weight: Tensor | None, linear: Linear
    ) -> tuple[Tensor, Tensor]:
        packed, form = _quantizing(linear, hidden.shape[0])
        if packed is None or form is None or weight is None:
            return super().norm_and_multiply(hidden, change, weight, linear)
        rows = norm_rows(hidden, change, weight, self._eps, form)
        return hidden, packed.multiply(rows, hidden.new_empty((len(hidden), packed.outputs)))

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
        positions, table = angles if angles is not None else (step.slots(layer), None)  # not read without a table
        rope_and_store(
            heads,
            positions,
            step.slots(layer),
            table,
            step.pool(layer),
            query_heads=attention.heads,
            norm_weight=weight,
            as_one=attention.norm == "all",
            eps=self._eps,
        )
        return heads[:, : attention.heads]

    def store_latents(
        self,
        down: Tensor,
        angles: Angles,
        query_norm: Tensor | None,
        norm: Tensor,
        step: TritonAttentionStep,
        layer: int,
        attention: LatentAttention,
    ) -> Tensor:
        positions, table = angles
        pool, slots = step.pool(layer), step.slots(layer)
        return store_latents(down, positions, slots, table, norm, query_norm, pool, attention.norm_eps)

    def rotate_queries(self, queries: Tensor, angles: Angles, attention: LatentAttention) -> Tensor:
        rotate_queries(queries, *angles)
        return queries

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        return gate(gate_up, activation)

    def gate_and_multiply(self, gate_up: Tensor, activation: Activation, linear: Linear) -> Tensor:
        packed, form = _quantizing(linear, gate_up.shape[0])
        if packed is None or form is None:
            return super().gate_and_multiply(gate_up, activation, linear)
        rows = gate_rows(gate_up, activation, form)
        return packed.multiply(rows, gate_up.new_empty((len(gate_up), packed.outputs)))

    def router_logits(self, x: Tensor, router: Tensor, bias: Tensor | None) -> Tensor:
        parts = self._routers.get(router)
        return super().router_logits(x, router, bias) if parts is None else parts.logits(x, bias)

    def route(self, logits: Tensor, mlp: ExpertsMLP, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        return route(logits, routing_of(mlp), correction)


def _quantizing(linear: Linear, rows: int) -> tuple[QuantizedLinear | None, RowFormat | None]:
    """Returns the quantized layer and its activation format for `rows` rows; None where they do not apply."""
    if isinstance(linear, TritonAdapted):
        linear = linear.current
    return (linear, linear.form_of(rows)) if isinstance(linear, QuantizedLinear) else (None, None)
