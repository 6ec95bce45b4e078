"""Draws tokens from fp32 or bf16 logits on a CPU, in one call of the native operator.

Random bits are the reference's to the bit, logarithms in all but their last bits: a token is another than PyTorch's
only where two scores are equal but for that. A token depends, to the bit, on its row and its draw only.
"""

import ctypes
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from contracts.messages.sampling import Sampling
from engine.backends.gumbel import UINT64_MASK
from engine.backends.native.library import DTYPE_CODES
from engine.backends.sampler import Draw, is_cut, min_p_reach

_DRAW_STRUCT = struct.Struct("=qQqqqddd")
"""Mirrors `struct draw` in sampling.c."""


class NativeSampler:
    def __init__(self, native: ctypes.CDLL) -> None:
        self._native = native

    def sample(self, logits: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
        rows, vocab = logits.shape
        assert rows == len(draws) and logits.is_contiguous()
        packed = [
            _packed(row, sampling, sample, index)
            for row, (sampling, samples, index) in enumerate(draws)
            for sample in samples
        ]
        random = [sampling for sampling, _, _ in draws if sampling.temperature > 0]
        filtered = any(sampling.min_p > 0 or is_cut(sampling, vocab) for sampling in random)
        room = torch.empty((torch.get_num_threads() if filtered else 0, vocab))
        floors, scores = torch.empty(len(packed)), torch.empty(len(packed))
        tokens, finite = torch.empty(len(packed), dtype=torch.int64), torch.empty(len(packed), dtype=torch.bool)
        places = [each.data_ptr() for each in (room, floors, scores, tokens, finite)]
        self._native.baton_sample(
            DTYPE_CODES[logits.dtype], logits.data_ptr(), vocab, b"".join(packed), len(packed), *places
        )
        return tokens, finite


def _packed(row: int, sampling: Sampling, sample: int, index: int) -> bytes:
    seed, reach = sampling.seed & UINT64_MASK, min_p_reach(sampling)
    return _DRAW_STRUCT.pack(row, seed, sample, index, sampling.top_k, sampling.temperature, sampling.top_p, reach)
