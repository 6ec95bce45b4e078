"""Turns MXFP4 weights into numbers: 4 bits each, and a power of two for every 32 of them.

A number has a sign, two bits of exponent and one of mantissa (E2M1); a block's scale is 2 ** (byte - 127) (E8M0). See
the Open Compute Project's Microscaling Formats, version 1.0, sections 5.3.3 and 5.4.1.
"""

import torch
from torch import Tensor

BLOCK = 32
"""Numbers that share a scale."""
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)], dtype=torch.bfloat16)
"""What each of the 16 codes stands for; the highest bit is the sign."""


def dequantized(blocks: Tensor, scales: Tensor) -> Tensor:
    """Returns the bf16 numbers `[rows, 32 x blocks]` of a weight, which bf16 has exactly.

    `blocks` are uint8 `[rows, blocks, 16]`, two numbers in a byte, of which the lower four bits are the first; `scales`
    are uint8 `[rows, blocks]`.
    """
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(2)  # [rows, blocks, 32]
    return torch.ldexp(VALUES[codes.int()].float(), scales.int().unsqueeze(-1) - 127).bfloat16().flatten(1)
