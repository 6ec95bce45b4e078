"""A model computed by transformers' own code over our KV pool, in flat batches with one row for each token."""

import copy
from collections.abc import Sequence
from typing import Any, Generic

from torch import Tensor, nn

from engine.model.attention import Step
from engine.model.batch import Batch
from engine.model.layers.adapted import Adapting
from engine.model.model import Stored
from engine.wrapped.attending import PAGED_ATTENTION_NAME, CurrentStep, PagedAttention
from engine.wrapped.linears import BackendLinear
from engine.wrapped.probe import OwnAttention, layers_of


class WrappedModel(Generic[Step]):
    """An `engine.model.model.Model`. Its steps are not recorded as CUDA graphs, since their code is not ours."""

    def __init__(self, own: Any, attentions: Sequence[OwnAttention], adapting: Adapting | None = None) -> None:
        self._adapting = adapting
        self._current = CurrentStep()
        layers = layers_of(attentions)
        for layer, each in zip(layers, attentions, strict=True):
            each.module.paged_attention = PagedAttention(
                layer, each.attention, each.value_dim, each.sinks, self._current, stores=each.source is None
            )
        own.set_attn_implementation(PAGED_ATTENTION_NAME)
        self._own = own
        below = own.base_model_prefix if own.base_model_prefix in own._modules else "model"  # Llama 4 has another's
        self._base = getattr(own, below)
        self._head = _head_of(own, below)

    def weights_bytes(self) -> int:
        packed = [module.linear for module in self._own.modules() if isinstance(module, BackendLinear)]
        tensors = [*self._own.parameters(), *self._own.buffers(), *(each for layer in packed for each in layer.held())]
        return sum({id(each): each.numel() * each.element_size() for each in tensors}.values())

    def forward(self, batch: Batch, step: Step, stored: Stored) -> Tensor:
        """All rows pass the last layer; only `batch.logit_rows` reach the head."""
        current = self._current
        current.step, current.stored = step, stored
        if self._adapting is not None:
            self._adapting.begin(batch.adapters)
        try:
            output = self._base(
                input_ids=batch.token_ids.unsqueeze(0), position_ids=batch.positions.unsqueeze(0), use_cache=False
            )
        finally:
            current.step = current.stored = None
        hidden: Tensor = output[0][0]
        return hidden if len(batch.logit_rows) == len(hidden) else hidden[batch.logit_rows]

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(inputs_embeds=hidden.unsqueeze(0), use_cache=False).logits[0]
        return logits


class _HiddenStatesOutput:
    """The output of a model without its head: hidden states, and None for everything else."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class _EmbeddingsAsStates(nn.Module):
    """Replaces the model below a head: returns the embeddings that it is given as hidden states."""

    @property
    def decoder(self) -> "_EmbeddingsAsStates":
        return self  # some heads ask for the decoder in the model

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _HiddenStatesOutput:
        return _HiddenStatesOutput(inputs_embeds)


def _head_of(own: Any, below: str) -> Any:
    """Returns a copy of `own` that computes only its head, and its changes to logits, from hidden states.

    `below` names the model below the head.
    """
    head = copy.copy(own)
    head._modules = {**own._modules, below: _EmbeddingsAsStates()}
    return head
