"""The layers of the transformer on CUDA: matrix products by PyTorch, everything between them by Triton kernels.

Six launches and four matrix products a layer. In the last layer only the rows that are sampled from go on once all KV
is stored; in a decode step those are all.
"""

from collections.abc import Sequence

from torch import Tensor

from engine.architectures import ModelConfig
from engine.attention import AttentionStep
from engine.attention_triton import TritonAttentionStep
from engine.batch import Batch
from engine.layer import Layer
from engine.layers import Stored
from engine.rope import angle_table
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_and_store import rope_and_store
from kernels.silu_and_mul import silu_and_mul


class TritonLayers:
    """See `engine.layers.Layers`. The attention of every step is Triton's too."""

    def __init__(self, config: ModelConfig, layers: Sequence[Layer], norm: Tensor) -> None:
        self._config = config
        self._layers = layers
        self._norm = norm
        self._angles = angle_table(config.rope, config.head_dim, config.max_model_len, norm.device)

    def forward(self, hidden: Tensor, batch: Batch, step: AttentionStep, stored: Stored) -> Tensor:
        """See `Layers`."""
        assert isinstance(step, TritonAttentionStep)
        eps = self._config.norm_eps
        change: Tensor | None = None
        for index, layer in enumerate(self._layers):
            if change is None:
                normed = rms_norm(hidden, layer.attention_norm, eps)
            else:
                normed = add_rms_norm(hidden, change, layer.attention_norm, eps)
            queries = self._store(layer, normed, batch, step.pool(index))
            stored(index)
            last = index == len(self._layers) - 1
            if last and not len(batch.logit_rows):
                return hidden[:0]
            attended = step.attend(index, queries).flatten(1)
            if last and len(batch.logit_rows) < len(hidden):
                hidden, attended = hidden[batch.logit_rows], attended[batch.logit_rows]
            change = layer.attention_output(attended)
            normed = add_rms_norm(hidden, change, layer.mlp_norm, eps)
            change = layer.down(silu_and_mul(layer.gate_up(normed)))
        assert change is not None
        return add_rms_norm(hidden, change, self._norm, eps)

    def _store(self, layer: Layer, normed: Tensor, batch: Batch, pool: Tensor) -> Tensor:
        """Stores keys and values; returns the queries `[tokens, heads, dim]`, positions applied."""
        config = self._config
        heads = layer.query_key_value(normed).view(len(normed), -1, config.head_dim)
        rope_and_store(
            *(heads, batch.positions, batch.slots, self._angles, pool),
            query_heads=config.heads,
            norm_weight=layer.query_key_norm,
            eps=config.norm_eps,
        )
        return heads[:, : config.heads]
