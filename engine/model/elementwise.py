"""Says what a layer computes between its matrix products, beside attention."""

from typing import Protocol

from torch import Tensor

from engine.model.attention import TakenStep

Angles = tuple[Tensor, Tensor]
"""A step's rotations, as the one that made them takes them: cosine and sine, or positions and a table of both."""


class Elementwise(Protocol[TakenStep]):
    """Adds, norms, rotates and gates.

    Norms are root mean square norms over the last axis (https://arxiv.org/abs/1910.07467), in fp32 inside.
    """

    def add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Returns `hidden + change` and its norm, all `[rows, hidden]`; `hidden` may be overwritten."""
        ...

    def angles(self, positions: Tensor) -> Angles:
        """Returns the rotations of int64 `positions` `[tokens]`; called once for a step."""
        ...

    def rotate_and_store(
        self, heads: Tensor, angles: Angles, weight: Tensor | None, step: TakenStep, layer: int, *, query_heads: int
    ) -> Tensor:
        """Rotates queries and keys, normed by a `weight` `[query_heads + kv_heads, dim]` first; stores keys and values.

        `heads` `[tokens, query_heads + 2 x kv_heads, dim]`, contiguous, are queries, keys and values, and may be
        overwritten. Returns the queries `[tokens, query_heads, dim]`.
        """
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """Returns silu(first half) * second half, `[rows, width]` of `[rows, 2 x width]`."""
        ...
