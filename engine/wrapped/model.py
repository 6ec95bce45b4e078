"""Serves a model by transformers' own code, over our KV pool: flat batches, one row for each token."""

import copy
from collections.abc import Sequence
from typing import Any, Generic

from torch import Tensor, nn

from engine.model.attention import Step
from engine.model.batch import Batch
from engine.model.model import Stored
from engine.wrapped.attending import PAGED_ATTENTION_NAME, CurrentStep, PagedAttention
from engine.wrapped.linears import BackendLinear
from engine.wrapped.probe import OwnAttention


class WrappedModel(Generic[Step]):
    """See `engine.model.model.Model`. Steps are not recorded as CUDA graphs: the code in them is not ours."""

    def __init__(self, own: Any, attentions: Sequence[OwnAttention]) -> None:
        """Takes over `own`, a causal language model of transformers, whose attention was looked at."""
        self._current = CurrentStep()
        for layer, each in enumerate(attentions):
            each.module.paged_attention = PagedAttention(
                layer, each.attention, each.value_dim, each.sinks, self._current
            )
        own.set_attn_implementation(PAGED_ATTENTION_NAME)
        self._own = own
        self._base = own.base_model
        self._head = _head_of(own)

    def weights_bytes(self) -> int:
        packed = [module.linear for module in self._own.modules() if isinstance(module, BackendLinear)]
        tensors = [*self._own.parameters(), *self._own.buffers(), *(each for one in packed for each in one.held())]
        return sum({id(each): each.numel() * each.element_size() for each in tensors}.values())

    def forward(self, batch: Batch, step: Step, stored: Stored) -> Tensor:
        """See `Model`. All rows go through the last layer; only `batch.logit_rows` go on to the head."""
        current = self._current
        current.step, current.stored = step, stored
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


class _Given:
    """Stands for what a model without its head gives: the hidden states, and nothing else that heads may look at."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class _Passes(nn.Module):
    """Stands in the place of a model without its head: gives as its states what it was given as embeddings."""

    @property
    def decoder(self) -> "_Passes":
        """Returns itself: some heads ask for the decoder in the model."""
        return self

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Given:
        """Gives `inputs_embeds` `[1, rows, hidden]`."""
        return _Given(inputs_embeds)


def _head_of(own: Any) -> Any:
    """Makes a model that computes what `own` does of hidden states: its head, and whatever it does to logits."""
    head = copy.copy(own)
    head._modules = {**own._modules, own.base_model_prefix: _Passes()}
    return head
