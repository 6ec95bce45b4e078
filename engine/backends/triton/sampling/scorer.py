"""Finds how likely tokens were by the Triton kernels, without waiting for the device."""

import torch
from torch import Tensor

from kernels.sampling.token_scores import token_scores


class TritonScorer:
    def warm_up(self, vocab: int, device: torch.device, dtype: torch.dtype) -> None:
        """Compiles the kernels for logits in the model's format, and for adjusted and filtered logits."""
        token = torch.zeros(1, dtype=torch.int64, device=device)
        for kind in {dtype, torch.float32}:
            self.score(torch.zeros((1, vocab), dtype=kind, device=device), None, token, 1)

    def score(self, logits: Tensor, rows: Tensor | None, tokens: Tensor, top: int) -> Tensor:
        if rows is None:
            rows = torch.arange(len(tokens), device=tokens.device)
        return token_scores(logits, rows, tokens, top)
