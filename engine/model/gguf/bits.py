"""Reads numbers out of the bytes of GGUF blocks, uint8 `[out, blocks, bytes of a block]`."""

import torch
from torch import Tensor

from engine.model.quantized import Form, Quantized


def made(
    form: Form,
    values: Tensor,
    scales: Tensor,
    group: int,
    offsets: Tensor | None = None,
    table: tuple[float, ...] = (),
) -> Quantized:
    """Makes a quantized weight of its values `[out, in]`, and of a scale (and an offset) for each `group` of inputs."""
    outputs = len(values)
    offsets = None if offsets is None else offsets.reshape(outputs, -1).contiguous()
    return Quantized(form, values.reshape(outputs, -1), scales.reshape(outputs, -1).contiguous(), group, offsets, table)


def halves(blocks: Tensor, at: int) -> Tensor:
    """Returns the fp16 at byte `at` of each block, as fp32 `[out, blocks]`."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16)[..., 0].float()


def nibbles(bytes: Tensor) -> Tensor:
    """Returns the low four bits of the last dimension's bytes, then the high four bits."""
    return torch.cat((bytes & 15, bytes >> 4), -1)


def bits(bytes: Tensor) -> Tensor:
    """Returns the bits of the last dimension's bytes, lowest bit of the first byte first."""
    return (bytes[..., None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(-2)


def pairs(bytes: Tensor) -> Tensor:
    """Returns two bits of each of 32 neighbouring bytes, lowest bits first, as int8 0 … 3."""
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    found: Tensor = bytes.unflatten(-1, (-1, 1, 32)) >> shifts & 3
    return found.flatten(-3).to(torch.int8)


def words(blocks: Tensor, begin: int, end: int, bytes: int) -> Tensor:
    """Returns the little-endian numbers of this many bytes between two bytes of each block, as int64."""
    parts: Tensor = blocks[..., begin:end].unflatten(-1, (-1, bytes)).long()
    return (parts << 8 * torch.arange(bytes)).sum(-1)
