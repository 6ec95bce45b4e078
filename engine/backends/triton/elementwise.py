"""Adds, norms, rotates and gates between a layer's matrix products, by one Triton kernel each.

With attention a layer is five launches and four matrix products, six and four where attention may be cut: two norms,
one rotation, one gate, and attention's kernel, behind which a second one joins the parts. A step of decodes and chunks
launches attention for either.

Importing this module loads Triton.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.backends.triton.attention import TritonAttentionStep
from engine.backends.triton.experts import routing_of
from engine.model.config import Activation, ExpertsMLP, HeadAttention, LatentAttention
from engine.model.elementwise import Angles
from engine.model.rope import Rope, rotate_
from kernels.gate import gate
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_and_store import rope_and_store
from kernels.route import route


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
        queries, vectors = down.tensor_split([down.shape[1] - attention.latent_rank - attention.rope_dim], 1)
        latents, keys = vectors.tensor_split([attention.latent_rank], 1)
        latents.copy_(rms_norm(latents.contiguous(), norm, attention.norm_eps))
        rotate_(keys.unsqueeze(1), *_sides(angles, down.dtype))
        step.store(layer, vectors.unsqueeze(1))
        return queries if query_norm is None else rms_norm(queries.contiguous(), query_norm, attention.norm_eps)

    def rotate_queries(self, queries: Tensor, angles: Angles, attention: LatentAttention) -> Tensor:
        rotate_(queries[..., attention.nope_dim :], *_sides(angles, queries.dtype))
        return queries

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        return gate(gate_up, activation)

    def route(self, logits: Tensor, mlp: ExpertsMLP, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        return route(logits, routing_of(mlp), correction)


def _sides(angles: Angles, dtype: torch.dtype) -> Angles:
    """Returns cosine and signed sine as PyTorch's operators take them, `[tokens, 1, rope.dim]` each."""
    positions, table = angles
    cos, sin = table[positions].to(dtype).unsqueeze(1).chunk(2, -1)
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
