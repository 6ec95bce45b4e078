"""The operators between a layer's matrix products, except for attention."""

from typing import Protocol

from torch import Tensor
from torch.nn import functional

from engine.model.attention import TakenStep
from engine.model.config import Activation, ExpertsMLP, HeadAttention, LatentAttention
from engine.model.layers.linear import Linear
from engine.model.rope import Rope

Angles = tuple[Tensor, Tensor]
"""A step's rotations in the backend's own form: cosine and sine, or positions and a table of both."""


class Elementwise(Protocol[TakenStep]):
    """Adds, norms, rotates and gates.

    Norms are root mean square norms over the last axis (https://arxiv.org/abs/1910.07467), in fp32 inside. A norm or a
    gate can also be fused with the linear layer behind it; the format between the two is up to the backend.
    """

    def add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns `hidden + change` and its norm, all `[rows, hidden]`; `hidden` may be overwritten.

        The `weight` is fp32 `[hidden]`; without one the sum is returned twice.
        """
        ...

    def norm_and_multiply(
        self, hidden: Tensor, change: Tensor | None, weight: Tensor | None, linear: Linear
    ) -> tuple[Tensor, Tensor]:
        """Returns the sum of `add_norm`, and `linear` applied to its norm, `[rows, out]`."""
        hidden, normed = self.add_norm(hidden, change, weight)
        return hidden, linear(normed)

    def angles(self, positions: Tensor, rope: Rope) -> Angles:
        """Returns the rotations for int64 `positions` `[tokens]`; called once per step for each distinct `rope`."""
        ...

    def rotate_and_store(
        self,
        heads: Tensor,
        angles: Angles | None,
        weight: Tensor | None,
        step: TakenStep,
        layer: int,
        attention: HeadAttention,
    ) -> Tensor:
        """Rotates queries and keys by `angles`, normed by `weight` before (each optional); stores keys and values.

        `heads` `[tokens, heads + 2 x kv_heads, dim]`, contiguous, are queries, keys and values, and may be overwritten;
        the `weight` is fp32 `[heads + kv_heads, dim]`. Returns the queries `[tokens, heads, dim]`.
        """
        ...

    def store_latents(
        self,
        down: Tensor,
        angles: Angles,
        query_norm: Tensor | None,
        norm: Tensor,
        step: TakenStep,
        layer: int,
        attention: LatentAttention,
    ) -> Tensor:
        """Norms the latent vectors, rotates the key shared by all heads by `angles`, and stores both.

        `down` `[tokens, queries + latent + rope]`, contiguous, may be overwritten; the norms' weights are fp32. Returns
        the queries' part, `[tokens, queries]`, with any row stride, normed by `query_norm` if given.
        """
        ...

    def rotate_queries(self, queries: Tensor, angles: Angles, attention: LatentAttention) -> Tensor:
        """Returns `queries` `[tokens, heads, nope + rope]` with the last `rope` values rotated; may overwrite them."""
        ...

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """Returns `activation` of the gate (first half) and the second half: `[rows, width]` of `[rows, 2 x width]`."""
        ...

    def gate_and_multiply(self, gate_up: Tensor, activation: Activation, linear: Linear) -> Tensor:
        """Returns `linear` applied to the result of `gate`, `[rows, out]`."""
        return linear(self.gate(gate_up, activation))

    def router_logits(self, x: Tensor, router: Tensor, bias: Tensor | None) -> Tensor:
        """Returns fp32 logits `[tokens, experts]` of `x` `[tokens, hidden]`, with the digits of a product in fp32.

        The `router` is fp32 `[experts, hidden]`, the `bias` fp32 `[experts]`.
        """
        return functional.linear(x.float(), router, bias)

    def route(self, logits: Tensor, mlp: ExpertsMLP, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        """Chooses each token's experts from fp32 `logits` `[tokens, experts]`, and computes their weights.

        Returns the experts, int32 `[tokens, used]`, best first, of equal scores the lower number first, and their
        weights, fp32 of that shape. The `correction` is fp32 `[experts]`. NaN logits give arbitrary distinct experts
        with NaN weights, for that token only.
        """
        ...
