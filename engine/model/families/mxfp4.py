"""Turns MXFP4 weights into numbers: 4 bits each, and a power of two for every 32 of them.

A number has a sign, two bits of exponent and one of mantissa (E2M1); a block's scale is 2 ** (byte - 127) (E8M0). See
the Open Compute Project's Microscaling Formats, version 1.0, sections 5.3.3 and 5.4.1.
"""

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 32
"""Numbers that share a scale."""
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)], dtype=torch.bfloat16)
"""What each of the 16 codes stands for; the highest bit is the sign."""
PAIRS = torch.stack((VALUES.repeat(16), VALUES.repeat_interleave(16)), -1)
"""What each byte stands for, bf16 `[256, 2]`: its lower four bits are the first number."""


def dequantized(blocks: Tensor, scales: Tensor) -> Tensor:
    """Returns the numbers `[rows, 32 x blocks]` of a weight in bf16, which has them exactly.

    `blocks` are uint8 `[rows, blocks, 16]`, two numbers in a byte, and `scales` uint8 `[rows, blocks]`.
    """
    numbers = functional.embedding(blocks.int(), PAIRS).flatten(2)  # [rows, blocks, 32]
    powers = torch.ldexp(torch.ones(scales.shape), scales.int() - 127).bfloat16()
    return numbers.mul_(powers.unsqueeze(-1)).flatten(1)
