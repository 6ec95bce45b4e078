"""Quantizes weights to int8, symmetrically, with one scale per output channel: a scale multiplies a finished sum.

w[o, i] is replaced by scale[o] q[o, i] with q in -127 … 127 and scale[o] = max |w[o]| / 127, hence by a number at most
scale[o] / 2 away.
"""

import torch
from torch import Tensor

LARGEST = 127


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes a weight `[out, in]` to int8 values `[out, in]` and fp32 scales `[out]`.

    An output whose weights are not all finite gets a scale that is not, so that its results are not, either.
    """
    exact = weight.float()
    scales = exact.abs().amax(1) / LARGEST
    values = (exact / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round_().nan_to_num_()
    return values.to(torch.int8), scales


def dequantized(values: Tensor, scales: Tensor) -> Tensor:
    """Returns the fp32 weight `[out, in]` that the quantized one stands for."""
    return values * scales[:, None]
