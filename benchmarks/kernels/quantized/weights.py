"""Makes random packed weights for the rows of this table: codes of all values, without a checkpoint."""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.quantized.packed import RUN, Kind, Packed
from kernels.sizes import tile_count

SPREAD = {"int4": 4.6, "fp4": 3.0, "int8": 74.0, "fp8": 80.0}
"""Of the numbers that codes drawn at random stand for, about."""


class Groups(NamedTuple):
    """Describes how weights are quantized: `size` inputs in a group, 0 being all of them."""

    kind: Kind
    size: int
    offsets: bool = False

    def __str__(self) -> str:
        size = f"groups of {self.size}" if self.size else "a scale for each output"
        return f"{self.kind}, {size}" + (" with offsets" if self.offsets else "")


AWQ = Groups("int4", 128, offsets=True)
INT4, MXFP4, INT8, FP8, BLOCKS = (
    Groups("int4", 32),
    Groups("fp4", 32),
    Groups("int8", 0),
    Groups("fp8", 0),
    Groups("fp8", 128),
)
Q6_K, Q4_K = Groups("int8", 16), Groups("int4", 32, offsets=True)


def weights(groups: Groups, outputs: int, inputs: int, device: torch.device, experts: tuple[int, ...] = ()) -> Packed:
    """Draws weights about as large as `inputs ** -0.5`, with 16-bit scales."""
    in_run = RUN * (2 if groups.kind in ("int4", "fp4") else 1)
    codes = torch.randint(
        0, 256, (*experts, tile_count(inputs, in_run), outputs, RUN), dtype=torch.uint8, device=device
    )
    if groups.kind == "fp8":
        codes &= 0xF7  # which leaves no code that is no number
    size = groups.size or inputs
    shape = (*experts, tile_count(inputs, size), outputs)
    scale = inputs**-0.5 / SPREAD[groups.kind]
    scales = torch.empty(shape, dtype=torch.float16, device=device).uniform_(scale / 2, 1.5 * scale)
    offsets = scales * 0.5 if groups.offsets else None
    return Packed(groups.kind, codes, scales, offsets, inputs, size)


def bytes_of(weight: Packed) -> int:
    """Returns how many bytes a weight has."""
    return sum(map(_bytes, weight.tensors()))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.itemsize
