"""Finds how likely tokens were with PyTorch operators, on any device: the reference."""

import torch
from torch import Tensor

from engine.backends.scorer import MIN_LOGPROB, width

AT_ONCE = 64
"""Rows that are looked at together: sorting takes several times their memory."""
UINT32_MASK = 0xFFFFFFFF


class ReferenceScorer:
    def score(self, logits: Tensor, rows: Tensor | None, tokens: Tensor, top: int) -> Tensor:
        words = torch.empty((len(tokens), width(top)), dtype=torch.int32, device=logits.device)
        for begin in range(0, len(tokens), AT_ONCE):
            some = slice(begin, begin + AT_ONCE)
            own = logits[some] if rows is None else logits[rows[some]]
            _score(own.float(), tokens[some, None], top, words[some])
        return words


def _score(x: Tensor, tokens: Tensor, top: int, words: Tensor) -> None:
    largest, own = x.amax(-1, keepdim=True), x.gather(1, tokens)
    log_sum = (x - largest).exp_().sum(-1, keepdim=True, dtype=torch.float64).log_()
    log_sum += 0 * x.sum(-1, keepdim=True)  # NaN where the row is not finite: infinities and NaN survive a sum
    ids = _likeliest(x, top)
    values = torch.cat((own, x.gather(1, ids)), 1)
    logprobs = ((values.double() - largest.double()) - log_sum).clamp_(min=MIN_LOGPROB).float().view(torch.int32)
    words[:, 0] = logprobs[:, 0]
    words[:, 1] = (x > own).sum(-1) + 1
    words[:, 2 : 2 + top] = ids
    words[:, 2 + top :] = logprobs[:, 1:]


def _likeliest(x: Tensor, top: int) -> Tensor:
    """Returns the ids of the largest of each row, `[rows, top]`: `topk` of numbers that are never equal.

    In their upper half they rise with a float, of which the bits below 0 are turned round; the lower half falls with
    the id. Adding 0 makes -0 equal to 0.
    """
    bits = (x + 0.0).view(torch.int32)
    rising = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    ids = torch.arange(x.shape[1], device=x.device)
    return UINT32_MASK - (((rising << 32) | (UINT32_MASK - ids)).topk(top).values & UINT32_MASK)
