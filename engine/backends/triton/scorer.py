"""Finds how likely tokens were by the Triton kernels, without waiting for the device."""

import torch
from torch import Tensor

from kernels.token_scores import token_scores


class TritonScorer:
    """See `engine.backends.scorer.Scorer`."""

    def score(self, logits: Tensor, rows: Tensor | None, tokens: Tensor, top: int) -> Tensor:
        if rows is None:
            rows = torch.arange(len(tokens), device=tokens.device)
        return token_scores(logits, rows, tokens, top)
