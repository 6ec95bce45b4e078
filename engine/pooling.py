"""Pools the hidden states of each text into one result: a vector, or the score of a pair of texts.

As in sentence-transformers, with states h of n tokens: `last` h_n, `cls` h_1, `mean` the sum of h_1 … h_n by n, in
fp32, and then v / max(|v|, 1e-12) if vectors are normalized. A score is a head's product with h_n, or the difference
of two tokens' logits at h_n, and 1 / (1 + e^-s) of it with a sigmoid. Methods other than `last` need all of a text's
states in one step.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from contracts.pooling import Pooling
from engine.model.batch import Batch

Score = Callable[[Tensor], Tensor]
"""Turns the states `[texts, hidden]` of the texts' last tokens into scores fp32 `[texts]`."""


class Pooler:
    """Pools the states of a step's texts."""

    def __init__(self, pooling: Pooling, score: Score | None = None, *, whole: bool = False) -> None:
        """`score` makes the score of a pooled state; without it, the model returns the score of a text.

        `whole`: a text is computed in one step.
        """
        self.pooling = pooling
        self.whole = whole or pooling.method != "last"
        self._score = score

    def rows(self, batch: Batch) -> Tensor:
        """Returns the rows, int64, whose states are needed; of other methods than `mean` one for each text."""
        match self.pooling.method:
            case "mean":
                return torch.arange(len(batch.token_ids), device=batch.token_ids.device)
            case "cls":
                return batch.query_start
        return batch.logit_rows

    def vectors(self, states: Tensor, batch: Batch) -> Tensor:
        """Returns the results fp32 `[texts, width]` of the texts that end in a step.

        `states` `[rows, hidden]` are those of `rows`. The width of a score is 1.
        """
        pooling = self.pooling
        if pooling.task == "score":
            scores = states.float().flatten() if self._score is None else self._score(states)
            return (torch.sigmoid(scores) if pooling.sigmoid else scores).unsqueeze(1)
        pooled = states.float()
        if pooling.method == "mean":
            lengths = torch.from_numpy(batch.query_lengths).to(states.device)
            owners = torch.repeat_interleave(torch.arange(len(lengths), device=states.device), lengths)
            sums = pooled.new_zeros(len(lengths), pooled.shape[1]).index_add_(0, owners, pooled)
            pooled = sums / lengths.unsqueeze(1)
        return functional.normalize(pooled, dim=1) if pooling.normalized else pooled


def of_head(weight: Tensor, bias: Tensor | None) -> Score:
    """Scores by a head's `weight` `[1, hidden]` and `bias` `[1]`, in fp32."""

    def score(states: Tensor) -> Tensor:
        return functional.linear(states.float(), weight.float(), None if bias is None else bias.float()).squeeze(1)

    return score


def of_tokens(logits: Callable[[Tensor], Tensor], no: int, yes: int) -> Score:
    """Scores by the logits of two tokens: their difference is the logit of yes, if only these two are possible."""

    def score(states: Tensor) -> Tensor:
        found = logits(states)
        return found[:, yes].float() - found[:, no].float()

    return score
