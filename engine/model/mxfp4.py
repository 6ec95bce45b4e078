"""Unpacks MXFP4 weights: 4 bits each, and one power of two as scale for 32 of them.

A code has a sign bit, two exponent bits and one mantissa bit (E2M1); a scale is 2 ** (byte - 127) (E8M0). See the Open
Compute Project's Microscaling Formats, version 1.0, sections 5.3.3 and 5.4.1.
"""

import torch
from torch import Tensor

from engine.model.quantized import Quantized

MX_BLOCK_VALUES = 32
FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_VALUES = (*FP4_MAGNITUDES, *(-value for value in FP4_MAGNITUDES))
"""Value of each of the 16 codes; the highest bit is the sign."""


def unpacked(blocks: Tensor, scales: Tensor) -> Quantized:
    """Returns the weight `[rows, 32 x blocks]`.

    `blocks` are uint8 `[rows, blocks, 16]`, two codes in a byte, the first in its lower bits, and `scales` uint8
    `[rows, blocks]`.
    """
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(1)
    powers = torch.ldexp(torch.ones(scales.shape), scales.int() - 127)
    return Quantized("int4", codes, powers, MX_BLOCK_VALUES, table=FP4_VALUES)
