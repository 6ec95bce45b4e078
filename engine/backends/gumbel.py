"""Makes random numbers without state: Gumbel noise as a function of (seed, sample, output index, vocabulary id).

The same counters give the same bits on every device and in every batch, so a sequence that moves to another worker
goes on as if nothing had happened (across kinds of devices the logarithms may differ in their last bit). The host mixes
the first three into a 64-bit key (the finalizer of SplitMix64, Steele et al. 2014); the key's halves and the vocabulary
id are mixed on the device by a 32-bit finalizer of the kind that Wellons' hash-prospector finds (two multiplications,
three xor-shifts).
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

UINT64_MASK = (1 << 64) - 1


def keys(seeds: Sequence[int], samples: Sequence[int], output_indices: Sequence[int]) -> NDArray[np.int32]:
    """Mixes the counters of each draw into two words, `[draws, 2]`."""
    mixed = np.zeros(len(seeds), dtype=np.uint64)
    for counters in (seeds, samples, output_indices):
        mixed = _split_mix(mixed ^ np.array([counter & UINT64_MASK for counter in counters], dtype=np.uint64))
    mixed = _split_mix(mixed)  # a fourth counter, which is 0
    return mixed.view(np.int32).reshape(-1, 2)  # the low word first, on every machine that we run on


def gumbel_noise(keys: Tensor, vocab_size: int) -> Tensor:
    """Draws standard Gumbel noise, fp32 `[rows, vocab]`, for int32 `keys` `[rows, 2]`.

    It is -log(-log u). A u close to 1 decides the maximum: 31 bits are drawn as v = 1 - u, which floats resolve finely.
    """
    ids = torch.arange(vocab_size, dtype=torch.int32, device=keys.device)
    bits = (ids * _signed(0x9E3779B9)) + keys[:, :1]
    bits ^= _shifted(bits, 16)
    bits *= _signed(0x21F0AAAD)
    bits ^= _shifted(bits, 15)
    bits += keys[:, 1:]
    bits *= _signed(0xD35A2D97)
    bits ^= _shifted(bits, 15)
    bits &= 0x7FFFFFFF
    v = bits.to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)
    return v.neg_().log1p_().neg_().log_().neg_()


def _shifted(x: Tensor, count: int) -> Tensor:
    """Shifts int32 to the right with zeros; PyTorch shifts with the sign."""
    return (x >> count).bitwise_and_((1 << (32 - count)) - 1)


def _split_mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
