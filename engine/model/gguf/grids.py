"""Unpacks the IQ types of GGUF that look several values up at once: 8 or 4 of them are a row of a grid.

Grids, and the signs that 7 bits stand for, are the `gguf` package's. A weight is scale times sign times the grid's
value; in IQ1 it is scale times (the grid's value plus or minus 1/8). All values become int8: of IQ1, eight times.
"""

from collections.abc import Callable

import torch
from gguf import quants
from torch import Tensor

from engine.model.gguf.bits import bits, halves, made, nibbles, words
from engine.model.quantized import Quantized

SIGN_INDICES = torch.tensor((0, 7, 14, 21))
"""Shifts of the four 7-bit indices of signs in a word of 32 bits; its last four bits are a scale."""


def _grid(kind: type) -> Tensor:
    """Returns a type's grid, int8 `[rows, 8 or 4]`."""
    kind.init_grid()  # type: ignore[attr-defined]
    grid: Tensor = torch.from_numpy(kind.grid[0, 0]).to(torch.int8)  # type: ignore[attr-defined]
    return grid


def _signed(values: Tensor, negative: Tensor) -> Tensor:
    """Returns values `[out, blocks, rows, 8 or 4]` with the signs whose bits are set, `[out, blocks, values]`."""
    values = values.flatten(-2)
    return torch.where(negative.view(values.shape).bool(), -values, values)


def _signs(indices: Tensor) -> Tensor:
    """Returns the eight bits of signs for each index, which has seven: the number of set bits is even."""
    return bits(torch.frombuffer(bytearray(quants.IQ2_XXS.ksigns), dtype=torch.uint8)[indices])


def _packed_signs(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the signs of 32 values, and the scale from 0 to 15, in each word of 32 bits."""
    return _signs((packed[..., None] >> SIGN_INDICES & 127).flatten(-2)), packed >> 28


def _half_scales(blocks: Tensor, scales: Tensor, step: float) -> Tensor:
    return halves(blocks, 0)[..., None] * (0.5 + scales) * step


def _four_bits(bytes: Tensor) -> Tensor:
    """Returns the low four bits of each byte, followed by its high four bits, `[out, blocks, 2 x bytes]`."""
    return nibbles(bytes[..., None]).flatten(-2)


def _iq2_xxs(blocks: Tensor) -> Quantized:
    indices, packed = blocks[..., 2:].unflatten(-1, (8, 8)).split(4, -1)
    signs, scales = _packed_signs(words(packed, 0, 4, 4)[..., 0])
    values = _grid(quants.IQ2_XXS)[indices.flatten(-2).long()]
    return made("int8", _signed(values, signs), _half_scales(blocks, scales, 0.25), 32)


def _iq2_xs(blocks: Tensor) -> Quantized:
    packed = words(blocks, 2, 66, 2)
    values = _signed(_grid(quants.IQ2_XS)[packed & 511], _signs(packed >> 9))
    return made("int8", values, _half_scales(blocks, _four_bits(blocks[..., 66:]), 0.25), 16)


def _iq2_s(blocks: Tensor) -> Quantized:
    high = (blocks[..., 66:74, None] >> torch.arange(0, 8, 2, dtype=torch.uint8) & 3).flatten(-2).long()
    values = _grid(quants.IQ2_S)[blocks[..., 2:34].long() | high << 8]
    scales = _half_scales(blocks, _four_bits(blocks[..., 74:]), 0.25)
    return made("int8", _signed(values, bits(blocks[..., 34:66])), scales, 16)


def _iq3_xxs(blocks: Tensor) -> Quantized:
    signs, scales = _packed_signs(words(blocks, 66, 98, 4))
    values = _grid(quants.IQ3_XXS)[blocks[..., 2:66].long()]
    return made("int8", _signed(values, signs), _half_scales(blocks, scales, 0.5), 32)


def _iq3_s(blocks: Tensor) -> Quantized:
    values = _grid(quants.IQ3_S)[blocks[..., 2:66].long() | bits(blocks[..., 66:74]).long() << 8]
    scales = halves(blocks, 0)[..., None] * (1 + 2 * _four_bits(blocks[..., 106:]))
    return made("int8", _signed(values, bits(blocks[..., 74:106])), scales, 32)


def _eighths(indices: Tensor, negative: Tensor) -> Tensor:
    """Returns eight times (the grid's value plus 1/8, or minus 1/8 where `negative`), int8 `[out, blocks, values]`."""
    eighth = torch.where(negative.bool(), -1, 1).to(torch.int8)
    return (8 * _grid(quants.IQ1_S)[indices] + eighth[..., None]).flatten(-2)


def _iq1_s(blocks: Tensor) -> Quantized:
    packed = words(blocks, 34, 50, 2)
    high = (packed[..., None] >> torch.tensor((0, 3, 6, 9)) & 7).flatten(-2)
    values = _eighths(blocks[..., 2:34].long() | high << 8, (packed >> 15).repeat_interleave(4, -1))
    return made("int8", values, halves(blocks, 0)[..., None] * (2 * (packed >> 12 & 7) + 1) / 8, 32)


def _iq1_m(blocks: Tensor) -> Quantized:
    """The fp16 scale of a block is in the highest four bits of its last four words."""
    packed, high = words(blocks, 48, 56, 2), _four_bits(blocks[..., 32:48]).long()
    whole = (packed >> 12 << torch.tensor((0, 4, 8, 12))).sum(-1)
    scale = torch.where(whole > 32767, whole - 65536, whole).to(torch.int16).view(torch.float16).float()
    scales = (packed[..., None] >> torch.tensor((0, 3, 6, 9)) & 7).flatten(-2)
    values = _eighths(blocks[..., :32].long() | (high & 7) << 8, high & 8)
    return made("int8", values, scale[..., None] * (2 * scales + 1) / 8, 16)


UNPACK_BY_GRID_TYPE: dict[str, Callable[[Tensor], Quantized]] = {
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
}
