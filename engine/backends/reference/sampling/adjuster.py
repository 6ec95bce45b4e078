"""Adjusts logits with PyTorch operators, on any device: the reference."""

import torch
from torch import Tensor

from engine.backends.adjuster import FORBIDDEN_LOGIT
from engine.backends.adjusting.device_counts import IN_OUTPUT
from engine.backends.adjusting.logit_changes import TOKENS_PER_WORD
from engine.backends.adjusting.on_device import NOT_PENDING, DeviceAdjuster


class ReferenceOperators:
    def penalize(self, logits: Tensor, counts: Tensor, texts: Tensor, penalties: Tensor, sampled: Tensor) -> None:
        rows, own, newest = texts.long()
        places = own * counts.shape[1] + sampled[newest.clamp(min=0)]
        counts.view(-1).index_add_(0, places, IN_OUTPUT * (newest != NOT_PENDING).int())
        seen = counts[own]
        in_output = seen // IN_OUTPUT
        repetition, frequency, presence = penalties[:, :, None]
        x = logits[rows]
        changed = torch.where(x > 0, x / repetition, x * repetition)
        changed = changed - in_output * frequency - torch.where(in_output > 0, presence, 0.0)
        logits[rows] = torch.where(seen > 0, changed, x)

    def mask(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        x = logits[rows]
        shifts = torch.arange(TOKENS_PER_WORD, dtype=torch.int32, device=bits.device)
        allowed = ((bits[:, :, None] >> shifts) & 1).flatten(1)[:, : logits.shape[1]]
        logits[rows] = torch.where(allowed == 1, x, _forbidden(x))

    def forbid(self, logits: Tensor, entries: Tensor, sampled: Tensor) -> None:
        rows, tokens, newest, wanted = entries.long()
        there = (newest == NOT_PENDING) | (sampled[newest.clamp(min=0)] == wanted)
        flat, places = logits.view(-1), rows * logits.shape[1] + tokens
        x = flat[places]
        # One entry may apply where another of the same place does not; the smaller value is that of an entry that
        # applies.
        flat.scatter_reduce_(0, places, torch.where(there, _forbidden(x), x), "amin")


class ReferenceAdjuster(DeviceAdjuster):
    def __init__(self) -> None:
        super().__init__(ReferenceOperators())


def _forbidden(x: Tensor) -> Tensor:
    """Returns the logits of forbidden tokens: NaN and infinity stay unchanged."""
    return torch.where(x.isfinite(), FORBIDDEN_LOGIT, x)
