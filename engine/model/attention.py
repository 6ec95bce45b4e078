"""Says what every backend's attention offers: the seam between the model and the KV pool."""

from typing import Protocol, TypeVar

from torch import Tensor

from engine.model.batch import Batch


class AttentionStep(Protocol):
    """Gives one step its view of the pool: it is made once for a batch, and every layer uses it."""

    def store(self, layer: int, keys_values: Tensor) -> None:
        """Writes `keys_values` `[tokens, 2 x kv_heads, head_dim]`, keys before values, to the tokens' slots."""
        ...

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Attends, causally, from `queries` `[tokens, heads, head_dim]` to all stored tokens of their sequences.

        Head h uses KV head h // (heads / kv_heads). Scale, softcap and window are the layer's: a window w lets a query
        at position p see the keys at p - w + 1 … p. `sinks` are fp32 `[heads]`, scores of a key whose value is 0.
        Returns `[tokens, heads, head_dim]`.
        """
        ...


Step = TypeVar("Step", bound=AttentionStep)
"""The steps of one backend's attention: its layers take no others."""
MadeStep = TypeVar("MadeStep", bound=AttentionStep, covariant=True)
TakenStep = TypeVar("TakenStep", bound=AttentionStep, contravariant=True)


class Attention(Protocol[MadeStep]):
    """Attends over one pool."""

    def begin(self, batch: Batch) -> MadeStep:
        """Makes what all layers of this step share, such as indices and masks."""
        ...
