"""Finds how likely tokens were, of fp32 or bf16 logits on a CPU, in one call of the native operator.

A token's words depend, to the bit, on its row and itself only.
"""

import ctypes

import torch
from torch import Tensor

from contracts.scores import MAX_TOP_LOGPROBS
from engine.backends.native.library import DTYPE_CODES
from engine.backends.scorer import width


class NativeScorer:
    def __init__(self, native: ctypes.CDLL) -> None:
        self._native = native

    def score(self, logits: Tensor, rows: Tensor | None, tokens: Tensor, top: int) -> Tensor:
        assert logits.is_contiguous() and tokens.is_contiguous() and top <= MAX_TOP_LOGPROBS
        count, vocab = len(tokens), logits.shape[1]
        words = torch.empty((count, width(top)), dtype=torch.int32)
        places = None if rows is None else rows.contiguous().data_ptr()
        self._native.baton_score(
            DTYPE_CODES[logits.dtype], logits.data_ptr(), vocab, places, tokens.data_ptr(), count, top, words.data_ptr()
        )
        return words
