"""The one decoder-only transformer; what tells architectures apart is in its config.

It touches the outside at four points: an `AttentionStep` that stores and attends, the linear layers that a factory
made, the operators between those, and the signal that a layer's KV is written.
"""

from torch import Tensor
from torch.nn import functional

from core.status import Progress
from engine.model.attention import AttentionStep
from engine.model.batch import Batch
from engine.model.config import ModelConfig
from engine.model.layer import load_layer
from engine.model.layers import Arrange, Stored
from engine.model.linear import LinearFactory


class Model:
    """Token ids in, logits out; KV goes to the attention step."""

    def __init__(self, config: ModelConfig, make: LinearFactory, arrange: Arrange, progress: Progress) -> None:
        self._embedding = make.tensor("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
        layers = []
        for index in range(config.layers):
            progress("loading weights", 100.0 * index / (config.layers + 1))
            layers.append(load_layer(config, make, index))
        norm = make.tensor("model.norm.weight", (config.hidden_size,))
        if config.tied_head:
            self._head = make.of(self._embedding)
        else:
            self._head = make.linear(["lm_head"], [config.vocab_size], config.hidden_size)
        self._layers = arrange(config, layers, norm)
        self._held = [self._embedding, norm, *self._head.held(), *(each for layer in layers for each in layer.held())]
        progress("loading weights", 100.0)

    def weights_bytes(self) -> int:
        """Bytes of the weights as they are held: a tied head is counted only where it was packed into a copy."""
        return sum({id(tensor): tensor.numel() * tensor.element_size() for tensor in self._held}.values())

    def forward(self, batch: Batch, step: AttentionStep, stored: Stored) -> Tensor:
        """Normed hidden states `[rows, hidden]` of the rows that are sampled from; KV of all is stored."""
        return self._layers.forward(functional.embedding(batch.token_ids, self._embedding), batch, step, stored)

    def logits(self, hidden: Tensor) -> Tensor:
        """`[rows, vocab]` of what `forward` gave."""
        return self._head(hidden)
