"""Unpacks quantized blocks of a GGUF file, exactly, into codes, scales and offsets (`engine.model.quantized`).

The `gguf` package only dequantizes them to floats, which would take four times the memory. Layout: ggml's
`ggml-common.h`. A weight is d q, d (q - 8), d q + m, or in the K types, whose blocks of 256 have scales s and m for
each 16 or 32 values, d s q - dmin m. In MXFP4 and IQ4 a code is looked up in a table; `grids.py` has other IQ types.
"""

from collections.abc import Callable

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from engine.model.gguf.bits import bits, halves, made, nibbles, pairs
from engine.model.gguf.grids import UNPACK_BY_GRID_TYPE
from engine.model.mxfp4 import FP4_VALUES
from engine.model.quantized import Form, Quantized

Unpack = Callable[[Tensor], Quantized]
"""Unpacks uint8 `[out, blocks, bytes of a block]`."""

GROUP_VALUES = 32


def unpacked(kind: str, rows: Tensor, inputs: int) -> Quantized:
    """Returns the weight `[out, inputs]` from blocks of a type in `FORM_BY_TYPE`, uint8 `[out, bytes of a row]`."""
    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    return UNPACK_BY_TYPE[kind](rows.view(len(rows), inputs // values, size))


def _q4_0(blocks: Tensor) -> Quantized:
    d = halves(blocks, 0)
    return made("int4", nibbles(blocks[..., 2:]), d, GROUP_VALUES, -8 * d)


def _q4_1(blocks: Tensor) -> Quantized:
    return made("int4", nibbles(blocks[..., 4:]), halves(blocks, 0), GROUP_VALUES, halves(blocks, 2))


def _five(blocks: Tensor, at: int) -> Tensor:
    """Returns the codes 0 … 31: their highest bits are at byte `at`, followed by their low four bits."""
    return (nibbles(blocks[..., at + 4 :]) | bits(blocks[..., at : at + 4]) << 4).to(torch.int8)


def _q5_0(blocks: Tensor) -> Quantized:
    return made("int8", _five(blocks, 2) - 16, halves(blocks, 0), GROUP_VALUES)


def _q5_1(blocks: Tensor) -> Quantized:
    return made("int8", _five(blocks, 4), halves(blocks, 0), GROUP_VALUES, halves(blocks, 2))


def _q8_0(blocks: Tensor) -> Quantized:
    return made("int8", blocks[..., 2:].contiguous().view(torch.int8), halves(blocks, 0), GROUP_VALUES)


def _q2_k(blocks: Tensor) -> Quantized:
    values = pairs(blocks[..., 16:80])
    scales, offsets = halves(blocks, 80)[..., None] * (blocks[..., :16] & 15), halves(blocks, 82)[..., None]
    return made("int8", values, scales, 16, -(offsets * (blocks[..., :16] >> 4)))


def _q3_k(blocks: Tensor) -> Quantized:
    """The highest bit of a code is in a mask, where 1 stands for 0; 12 bytes hold 6 bits of each of 16 scales."""
    high = (blocks[..., None, :32] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1).flatten(-2)
    low, packed = nibbles(blocks[..., 96:104]), blocks[..., None, 104:108]
    upper = (packed >> torch.arange(0, 8, 2, dtype=torch.uint8)[:, None] & 3).flatten(-2)
    scales = halves(blocks, 108)[..., None] * ((low | upper << 4).to(torch.int8) - 32)
    return made("int8", (pairs(blocks[..., 32:96]) | high << 2).to(torch.int8) - 4, scales, 16)


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the scales and offsets of a block's 8 groups, fp32 `[out, blocks, 8]` each.

    12 bytes hold 6 bits of each. Bytes 0-3 and 4-7 have the first four scales and minima in their low 6 bits, and the
    high 2 bits of the last four scales and minima above; bytes 8-11 have the low 4 bits of the last four.
    """
    scales, minima, low = blocks[..., 4:16].split(4, -1)
    scale = torch.cat((scales & 63, low & 15 | scales >> 2 & 48), -1)
    minimum = torch.cat((minima & 63, low >> 4 | minima >> 2 & 48), -1)
    return halves(blocks, 0)[..., None] * scale, -(halves(blocks, 2)[..., None] * minimum)


def _q4_k(blocks: Tensor) -> Quantized:
    values = nibbles(blocks[..., 16:].unflatten(-1, (4, GROUP_VALUES)))
    scales, offsets = _k_scales(blocks)
    return made("int4", values, scales, GROUP_VALUES, offsets)


def _q5_k(blocks: Tensor) -> Quantized:
    low = nibbles(blocks[..., 48:].unflatten(-1, (4, GROUP_VALUES))).unflatten(-1, (2, GROUP_VALUES)).flatten(-3, -2)
    high = (
        blocks[..., None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1
    )  # one bit of each byte for each group
    scales, offsets = _k_scales(blocks)
    return made("int8", (low | high << 4).to(torch.int8), scales, GROUP_VALUES, offsets)


def _q6_k(blocks: Tensor) -> Quantized:
    low = nibbles(blocks[..., :128].unflatten(-1, (2, 64)))  # [2, 128] for each 256 values
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = (blocks[..., 128:192].unflatten(-1, (2, 1, GROUP_VALUES)) >> shifts & 3).flatten(-2)
    scales = halves(blocks, 208)[..., None] * blocks[..., 192:208].contiguous().view(torch.int8)
    return made("int8", (low | high << 4).to(torch.int8) - 32, scales, 16)


def _mxfp4(blocks: Tensor) -> Quantized:
    powers = torch.ldexp(torch.ones(blocks.shape[:-1]), blocks[..., 0].int() - 127)
    return made("int4", nibbles(blocks[..., 1:]), powers, GROUP_VALUES, table=FP4_VALUES)


IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""Value of each code of IQ4_NL and IQ4_XS: finer near 0. They become int8, since operators know no such table."""


def _iq4_values(codes: Tensor) -> Tensor:
    return torch.tensor(IQ4_VALUES, dtype=torch.int8)[codes.int()]


def _iq4_nl(blocks: Tensor) -> Quantized:
    return made("int8", _iq4_values(nibbles(blocks[..., 2:])), halves(blocks, 0), GROUP_VALUES)


def _iq4_xs(blocks: Tensor) -> Quantized:
    """Scales have 6 bits: two of each in two bytes, then four of each in four bytes."""
    upper = (blocks[..., 2:4, None] >> torch.arange(0, 8, 2, dtype=torch.uint8) & 3).flatten(-2)
    lower = (blocks[..., 4:8, None] >> torch.tensor((0, 4), dtype=torch.uint8) & 15).flatten(-2)
    scales = halves(blocks, 0)[..., None] * ((lower | upper << 4).to(torch.int8) - 32)
    return made("int8", _iq4_values(nibbles(blocks[..., 8:].unflatten(-1, (8, 16)))), scales, GROUP_VALUES)


UNPACK_BY_TYPE: dict[str, Unpack] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "MXFP4": _mxfp4,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    **UNPACK_BY_GRID_TYPE,
}
FORM_BY_TYPE: dict[str, Form] = {
    kind: "int4" if kind.startswith(("Q4", "MXFP4")) else "int8" for kind in UNPACK_BY_TYPE
}
"""Quantization format in memory, by GGUF type."""
