"""Random packed weights: codes of all values, without a checkpoint."""

from typing import NamedTuple

import torch

from kernels.quantized.packed import BLOCK_OUTPUTS, MAX_INT4_CODE, RUN_BYTES, CodeKind, PackedWeight, in_run
from kernels.sizes import tile_count

CODE_SPREAD = {"int4": 4.6, "fp4": 3.0, "int8": 74.0, "fp8": 80.0}
"""Approximate spread of the values that random codes stand for."""
FP8_WITHOUT_NAN = 0xF7
"""Mask that leaves no code of a NaN."""


class Groups(NamedTuple):
    """How weights are quantized: `size` inputs in a group, 0 for one scale for each output.

    By block, `BLOCK_OUTPUTS` neighbouring outputs share their scales. With `zeros`, each group of int4 has a code that
    stands for 0.
    """

    kind: CodeKind
    size: int
    offsets: bool = False
    by_block: bool = False
    zeros: bool = False

    def __str__(self) -> str:
        block = f"x{BLOCK_OUTPUTS}" if self.by_block else ""
        return f"{self.kind}/{self.size or 'output'}{block}" + "+offsets" * self.offsets + "+zeros" * self.zeros


class Sizes(NamedTuple):
    """Outputs and inputs of a linear layer."""

    outputs: int
    inputs: int

    def __str__(self) -> str:
        return f"{self.inputs} -> {self.outputs}"


def packed_weights(groups: Groups, sizes: Sizes, device: torch.device, experts: tuple[int, ...] = ()) -> PackedWeight:
    outputs, inputs = sizes
    word = torch.int16 if groups.kind in ("int4", "fp4") else torch.uint8
    every, shape = torch.iinfo(word), (*experts, tile_count(inputs, in_run(groups.kind)), outputs, RUN_BYTES)
    codes = torch.randint(every.min, every.max + 1, shape, dtype=word, device=device)
    if groups.kind == "fp8":
        codes &= FP8_WITHOUT_NAN
    group = groups.size or inputs
    scale = inputs**-0.5 / CODE_SPREAD[groups.kind]
    short = torch.bfloat16 if groups.kind == "fp4" else torch.float16  # MXFP4's scales are powers of two
    scales = torch.empty((*experts, tile_count(inputs, group), outputs), dtype=short, device=device)
    scales.uniform_(scale / 2, 1.5 * scale)
    if groups.by_block:
        scales = scales[..., ::BLOCK_OUTPUTS].repeat_interleave(BLOCK_OUTPUTS, -1)[..., :outputs].contiguous()
    offsets = scales * 0.5 if groups.offsets else None
    if groups.zeros:
        offsets = torch.randint(MAX_INT4_CODE + 1, scales.shape, dtype=torch.int16, device=device)
    return PackedWeight(groups.kind, codes, scales, offsets, inputs, group, groups.by_block)


def weight_bytes(weight: PackedWeight) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in weight.tensors())
