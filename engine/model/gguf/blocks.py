"""Unpacks the blocks of quantized numbers in a GGUF file, exactly, into the forms of `engine.model.quantized`.

What a block is: ggml's `ggml-common.h`. A weight is d q, d (q - 8), d q + m, or in the K types, whose blocks of 256
have scales of their own for each 16 or 32 numbers, d s q - dmin m.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from engine.model.quantized import Form, Quantized

Unpack = Callable[[Tensor], Quantized]
"""Unpacks uint8 `[out, blocks, bytes of a block]`."""

BLOCK = 32


def unpacked(kind: str, rows: Tensor, inputs: int) -> Quantized:
    """Returns the weight `[out, inputs]` whose rows, uint8 `[out, bytes]`, are blocks of one of the kinds `FORMS`."""
    size = SIZES[kind]
    return UNPACK[kind](rows.view(len(rows), inputs // size, rows.shape[1] * size // inputs))


def _halves(blocks: Tensor, at: int) -> Tensor:
    """Reads an fp16 of each block, as fp32 `[out, blocks]`."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16)[..., 0].float()


def _nibbles(bytes: Tensor) -> Tensor:
    """Returns the low halves of the last dimension's bytes, and behind them the high ones."""
    return torch.cat((bytes & 15, bytes >> 4), -1)


def _bits(bytes: Tensor) -> Tensor:
    """Returns the bits of the last dimension's bytes, from the lowest of the first."""
    return (bytes[..., None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(-2)


def _made(form: Form, values: Tensor, scales: Tensor, group: int, offsets: Tensor | None = None) -> Quantized:
    """Makes a weight of values, scales and offsets that are spread over more dimensions than two."""
    outputs = len(values)
    offsets = None if offsets is None else offsets.reshape(outputs, -1).contiguous()
    return Quantized(form, values.reshape(outputs, -1), scales.reshape(outputs, -1).contiguous(), group, offsets)


def _q4_0(blocks: Tensor) -> Quantized:
    d = _halves(blocks, 0)
    return _made("int4", _nibbles(blocks[..., 2:]), d, BLOCK, -8 * d)


def _q4_1(blocks: Tensor) -> Quantized:
    return _made("int4", _nibbles(blocks[..., 4:]), _halves(blocks, 0), BLOCK, _halves(blocks, 2))


def _five(blocks: Tensor, at: int) -> Tensor:
    """Reads the codes 0 … 31 of a block: their highest bits are at `at`, and behind these the others."""
    return (_nibbles(blocks[..., at + 4 :]) | _bits(blocks[..., at : at + 4]) << 4).to(torch.int8)


def _q5_0(blocks: Tensor) -> Quantized:
    return _made("int8", _five(blocks, 2) - 16, _halves(blocks, 0), BLOCK)


def _q5_1(blocks: Tensor) -> Quantized:
    return _made("int8", _five(blocks, 4), _halves(blocks, 0), BLOCK, _halves(blocks, 2))


def _q8_0(blocks: Tensor) -> Quantized:
    return _made("int8", blocks[..., 2:].contiguous().view(torch.int8), _halves(blocks, 0), BLOCK)


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Reads the scales and the offsets of the 8 groups of a block, fp32 `[out, blocks, 8]`.

    12 bytes hold 6 bits of each: of the first four scales, then minima, in their low bits; of the last four the high
    two bits are above those, and the others in the third four bytes.
    """
    scales, minima, low = blocks[..., 4:16].split(4, -1)
    scale = torch.cat((scales & 63, low & 15 | scales >> 2 & 48), -1)
    minimum = torch.cat((minima & 63, low >> 4 | minima >> 2 & 48), -1)
    return _halves(blocks, 0)[..., None] * scale, -(_halves(blocks, 2)[..., None] * minimum)


def _q4_k(blocks: Tensor) -> Quantized:
    values = _nibbles(blocks[..., 16:].unflatten(-1, (4, BLOCK)))
    scales, offsets = _k_scales(blocks)
    return _made("int4", values, scales, BLOCK, offsets)


def _q5_k(blocks: Tensor) -> Quantized:
    low = _nibbles(blocks[..., 48:].unflatten(-1, (4, BLOCK))).unflatten(-1, (2, BLOCK)).flatten(-3, -2)
    high = blocks[..., None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1  # a bit of each for each group
    scales, offsets = _k_scales(blocks)
    return _made("int8", (low | high << 4).to(torch.int8), scales, BLOCK, offsets)


def _q6_k(blocks: Tensor) -> Quantized:
    low = _nibbles(blocks[..., :128].unflatten(-1, (2, 64)))  # of each 128 numbers: [2, 128]
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = (blocks[..., 128:192].unflatten(-1, (2, 1, BLOCK)) >> shifts & 3).flatten(-2)
    scales = _halves(blocks, 208)[..., None] * blocks[..., 192:208].contiguous().view(torch.int8)
    return _made("int8", (low | high << 4).to(torch.int8) - 32, scales, 16)


UNPACK: dict[str, Unpack] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
FORMS: dict[str, Form] = {kind: "int4" if kind.startswith("Q4") else "int8" for kind in UNPACK}
SIZES = {kind: 256 if kind.endswith("_K") else BLOCK for kind in UNPACK}
"""Numbers of a block."""
