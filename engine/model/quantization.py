"""Quantizes weights of numbers at load.

int8 is symmetric, with one scale per output, which multiplies a finished sum: w[o, i] is replaced by scale[o] q[o, i]
with q in -127 … 127 and scale[o] = max |w[o]| / 127, hence by a number at most scale[o] / 2 away.
"""

import torch
from torch import Tensor

from core.config import Quantization
from engine.model.quantized import Quantized, Weight

LARGEST = 127


def quantized(weight: Weight, quantization: Quantization) -> Weight:
    """Quantizes a weight `[out, in]` as is asked for; one that is quantized already stays."""
    if quantization == "none" or isinstance(weight, Quantized):
        return weight
    return to_int8(weight)


def to_int8(weight: Tensor) -> Quantized:
    """Quantizes a weight `[out, in]` with one scale for each output.

    An output whose weights are not all finite gets a scale that is not, so that its results are not, either.
    """
    exact = weight.float()
    scales = exact.abs().amax(1, keepdim=True) / LARGEST
    values = (exact / scales.clamp(min=torch.finfo(torch.float32).tiny)).round_().nan_to_num_()
    return Quantized("int8", values.to(torch.int8), scales, group=weight.shape[1])
