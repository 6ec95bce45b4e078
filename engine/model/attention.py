"""The seam between the model and the KV pool: what every attention backend offers."""

from typing import Protocol

from torch import Tensor

from engine.model.batch import Batch


class AttentionStep(Protocol):
    """One step's view of the pool; made once per batch, used by every layer."""

    def store(self, layer: int, keys_values: Tensor) -> None:
        """Writes `keys_values` `[tokens, 2 x kv_heads, head_dim]`, keys before values, to the tokens' slots."""
        ...

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Causal attention of `queries` `[tokens, heads, head_dim]` over all stored tokens of their sequences.

        Head h uses KV head h // (heads / kv_heads); scores are scaled by head_dim ** -0.5; a layer with a window w lets
        a query at position p see the keys at p - w + 1 … p. Returns `[tokens, heads, head_dim]`.
        """
        ...


class AttentionBackend(Protocol):
    """Makes the steps."""

    def begin(self, batch: Batch) -> AttentionStep:
        """What all layers of this step share: indices and masks."""
        ...
