"""Says what every backend's attention offers: the seam between the model and the KV pool."""

from typing import Protocol, TypeVar

from torch import Tensor

from engine.model.batch import Batch
from engine.model.linear import LatentProducts


class AttentionStep(Protocol):
    """Gives one step its view of the pool: it is made once for a batch, and every layer uses it."""

    def store(self, layer: int, keys_values: Tensor) -> None:
        """Writes `keys_values` `[tokens, 2 x kv_heads, head_dim]`, keys before values, to the tokens' slots.

        A layer of latent attention stores `[tokens, 1, latent + rope]`: a latent vector and a rotated key.
        """
        ...

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Attends, causally, from `queries` `[tokens, heads, head_dim]` to all stored tokens of their sequences.

        Head h uses KV head h // (heads / kv_heads). Scale, softcap and window are the layer's: a window w lets a query
        at position p see the keys at p - w + 1 … p. `sinks` are fp32 `[heads]`, scores of a key whose value is 0.
        Returns `[tokens, heads, head_dim]`.

        In a layer of latent attention, `queries` `[tokens, heads, latent + rope]` are absorbed ones. All heads have the
        same keys, whose first `latent` numbers are the values. Returns `[tokens, heads, latent]`.
        """
        ...

    def attend_latent(self, layer: int, queries: Tensor, products: LatentProducts) -> Tensor:
        """Attends from rotated `queries` `[tokens, heads, nope + rope]` to what a layer of latent attention has stored.

        Returns `[tokens, heads, value]`. Works attend in the form that `engine.model.latent.expands` finds, where a
        backend has both; without a method of its own, all are absorbed.
        """
        return products.values(self.attend(layer, products.absorbed(queries)))


Step = TypeVar("Step", bound=AttentionStep)
"""The steps of one backend's attention: its layers take no others."""
MadeStep = TypeVar("MadeStep", bound=AttentionStep, covariant=True)
TakenStep = TypeVar("TakenStep", bound=AttentionStep, contravariant=True)


class Attention(Protocol[MadeStep]):
    """Attends over one pool."""

    def begin(self, batch: Batch) -> MadeStep:
        """Makes what all layers of this step share, such as indices and masks."""
        ...
