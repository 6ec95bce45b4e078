"""An encoder that transformers' own code computes: whole texts, in which each token sees all others, and no KV.

A step's texts run in groups of similar lengths, so that less than half of a group is padding.
"""

from collections.abc import Iterator
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor

from engine.device import to_device
from engine.model.attention import TakenStep
from engine.model.batch import Batch, Ints
from engine.model.model import Stored

MAX_LENGTH_RATIO = 2
"""Maximum ratio of the lengths of two texts in one group."""


class EncoderModel(Generic[TakenStep]):
    """An `engine.model.model.Model` that gives the states of all tokens, or the output of its classifier for each text.

    The KV pool has one small layer, to which nothing is written: its blocks count the tokens of a step.
    """

    def __init__(self, own: Any, *, classifies: bool, separator: int | None = None) -> None:
        """`separator`: the token after the first text of a pair, if the model has token types."""
        self._own = own
        self._classifies = classifies
        self._separator = separator

    def weights_bytes(self) -> int:
        return sum(each.numel() * each.element_size() for each in (*self._own.parameters(), *self._own.buffers()))

    def forward(self, batch: Batch, step: TakenStep, stored: Stored) -> Tensor:
        """Returns the states `[rows, hidden]` of `batch.logit_rows`, or with a classifier its outputs `[texts, 1]`.

        Each work of the step is a whole text.
        """
        stored(0)
        starts = np.cumsum(batch.query_lengths) - batch.query_lengths
        rows, found = [], []
        for texts in groups_of(batch.query_lengths):
            lengths = batch.query_lengths[texts]
            positions = np.arange(lengths.max())
            is_text = positions < lengths[:, None]
            of_tokens = np.where(is_text, starts[texts][:, None] + positions, 0)
            output = self._output(batch.token_ids[to_device(of_tokens, batch.token_ids.device)], is_text)
            found.append(output if self._classifies else output[to_device(is_text, output.device)])
            rows.append(texts if self._classifies else of_tokens[is_text])
        order = to_device(np.argsort(np.concatenate(rows)), batch.token_ids.device)
        states = torch.cat(found)[order]
        return states if self._classifies else states[batch.logit_rows]

    def logits(self, hidden: Tensor) -> Tensor:
        raise AssertionError("an encoder draws no tokens")

    def _output(self, ids: Tensor, is_text: np.ndarray[Any, np.dtype[np.bool_]]) -> Tensor:
        """Returns the output for padded texts: states `[texts, tokens, hidden]`, or `[texts, 1]` of a classifier."""
        mask = to_device(is_text.astype(np.int64), ids.device)
        padding = getattr(self._own.config, "pad_token_id", None) or 0
        ids = torch.where(mask.bool(), ids, padding)  # some models count positions over non-padding ids
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self._separator is not None:
            ends = (ids == self._separator).long()
            inputs["token_type_ids"] = ((ends.cumsum(1) - ends) > 0).long() * mask
        output = self._own(**inputs)
        states: Tensor = output.logits if self._classifies else output.last_hidden_state
        return states


def groups_of(lengths: Ints) -> Iterator[Ints]:
    """Yields the indices of texts of similar lengths, shorter texts first."""
    order = np.argsort(lengths, kind="stable")
    begin = 0
    for place in range(1, len(order) + 1):
        if place == len(order) or lengths[order[place]] > MAX_LENGTH_RATIO * lengths[order[begin]]:
            yield order[begin:place]
            begin = place
