"""Unpacks quantized blocks of a GGUF file, exactly, into codes, scales and offsets (`engine.model.quantized`).

The `gguf` package only dequantizes them to floats, which would take four times the memory. Layout: ggml's
`ggml-common.h`. A weight is d q, d (q - 8), d q + m, or in the K types, whose blocks of 256 have scales s and m for
each 16 or 32 values, d s q - dmin m.
"""

from collections.abc import Callable

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from engine.model.quantized import Form, Quantized

Unpack = Callable[[Tensor], Quantized]
"""Unpacks uint8 `[out, blocks, bytes of a block]`."""

GROUP_VALUES = 32


def unpacked(kind: str, rows: Tensor, inputs: int) -> Quantized:
    """Returns the weight `[out, inputs]` from blocks of a type in `FORM_BY_TYPE`, uint8 `[out, bytes of a row]`."""
    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    return UNPACK_BY_TYPE[kind](rows.view(len(rows), inputs // values, size))


def _halves(blocks: Tensor, at: int) -> Tensor:
    """Returns the fp16 at byte `at` of each block, as fp32 `[out, blocks]`."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16)[..., 0].float()


def _nibbles(bytes: Tensor) -> Tensor:
    """Returns the low four bits of the last dimension's bytes, then the high four bits."""
    return torch.cat((bytes & 15, bytes >> 4), -1)


def _bits(bytes: Tensor) -> Tensor:
    """Returns the bits of the last dimension's bytes, lowest bit of the first byte first."""
    return (bytes[..., None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(-2)


def _made(form: Form, values: Tensor, scales: Tensor, group: int, offsets: Tensor | None = None) -> Quantized:
    outputs = len(values)
    offsets = None if offsets is None else offsets.reshape(outputs, -1).contiguous()
    return Quantized(form, values.reshape(outputs, -1), scales.reshape(outputs, -1).contiguous(), group, offsets)


def _q4_0(blocks: Tensor) -> Quantized:
    d = _halves(blocks, 0)
    return _made("int4", _nibbles(blocks[..., 2:]), d, GROUP_VALUES, -8 * d)


def _q4_1(blocks: Tensor) -> Quantized:
    return _made("int4", _nibbles(blocks[..., 4:]), _halves(blocks, 0), GROUP_VALUES, _halves(blocks, 2))


def _five(blocks: Tensor, at: int) -> Tensor:
    """Returns the codes 0 … 31: their highest bits are at byte `at`, followed by their low four bits."""
    return (_nibbles(blocks[..., at + 4 :]) | _bits(blocks[..., at : at + 4]) << 4).to(torch.int8)


def _q5_0(blocks: Tensor) -> Quantized:
    return _made("int8", _five(blocks, 2) - 16, _halves(blocks, 0), GROUP_VALUES)


def _q5_1(blocks: Tensor) -> Quantized:
    return _made("int8", _five(blocks, 4), _halves(blocks, 0), GROUP_VALUES, _halves(blocks, 2))


def _q8_0(blocks: Tensor) -> Quantized:
    return _made("int8", blocks[..., 2:].contiguous().view(torch.int8), _halves(blocks, 0), GROUP_VALUES)


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the scales and offsets of a block's 8 groups, fp32 `[out, blocks, 8]` each.

    12 bytes hold 6 bits of each. Bytes 0-3 and 4-7 have the first four scales and minima in their low 6 bits, and the
    high 2 bits of the last four scales and minima above; bytes 8-11 have the low 4 bits of the last four.
    """
    scales, minima, low = blocks[..., 4:16].split(4, -1)
    scale = torch.cat((scales & 63, low & 15 | scales >> 2 & 48), -1)
    minimum = torch.cat((minima & 63, low >> 4 | minima >> 2 & 48), -1)
    return _halves(blocks, 0)[..., None] * scale, -(_halves(blocks, 2)[..., None] * minimum)


def _q4_k(blocks: Tensor) -> Quantized:
    values = _nibbles(blocks[..., 16:].unflatten(-1, (4, GROUP_VALUES)))
    scales, offsets = _k_scales(blocks)
    return _made("int4", values, scales, GROUP_VALUES, offsets)


def _q5_k(blocks: Tensor) -> Quantized:
    low = _nibbles(blocks[..., 48:].unflatten(-1, (4, GROUP_VALUES))).unflatten(-1, (2, GROUP_VALUES)).flatten(-3, -2)
    high = (
        blocks[..., None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1
    )  # one bit of each byte for each group
    scales, offsets = _k_scales(blocks)
    return _made("int8", (low | high << 4).to(torch.int8), scales, GROUP_VALUES, offsets)


def _q6_k(blocks: Tensor) -> Quantized:
    low = _nibbles(blocks[..., :128].unflatten(-1, (2, 64)))  # [2, 128] for each 256 values
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = (blocks[..., 128:192].unflatten(-1, (2, 1, GROUP_VALUES)) >> shifts & 3).flatten(-2)
    scales = _halves(blocks, 208)[..., None] * blocks[..., 192:208].contiguous().view(torch.int8)
    return _made("int8", (low | high << 4).to(torch.int8) - 32, scales, 16)


UNPACK_BY_TYPE: dict[str, Unpack] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
FORM_BY_TYPE: dict[str, Form] = {kind: "int4" if kind.startswith("Q4") else "int8" for kind in UNPACK_BY_TYPE}
"""Quantization format in memory, by GGUF type."""
