"""The interface of a backend's attention, between the model and the KV pool."""

from typing import Protocol, TypeVar

from torch import Tensor

from engine.model.batch import Batch
from engine.model.layers.linear import LatentProducts


class AttentionStep(Protocol):
    """Attention of one step over the pool: made once for a batch, used by every layer."""

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

        In a layer of latent attention, `queries` `[tokens, heads, latent + rope]` are absorbed. All heads share the
        keys, whose first `latent` values are the values. Returns `[tokens, heads, latent]`.
        """
        ...

    def attend_latent(self, layer: int, queries: Tensor, products: LatentProducts) -> Tensor:
        """Attends from rotated `queries` `[tokens, heads, nope + rope]` to the stored KV of latent attention.

        Returns `[tokens, heads, value]`. A backend with both forms chooses by `engine.model.layers.latent.expands`;
        this default always uses the absorbed form.
        """
        return products.values(self.attend(layer, products.absorbed(queries)))


Step = TypeVar("Step", bound=AttentionStep)
"""The attention step of one backend, which only its layers accept."""
MadeStep = TypeVar("MadeStep", bound=AttentionStep, covariant=True)
TakenStep = TypeVar("TakenStep", bound=AttentionStep, contravariant=True)


class Attention(Protocol[MadeStep]):
    """Attends over one pool."""

    def begin(self, batch: Batch) -> MadeStep:
        """Prepares indices and masks that all layers of this step share."""
        ...
