"""Packs quantized weights for these kernels: the weights that a program reads at once are contiguous.

    w[o, i] = scales[i // group, o] v[o, i] + offsets[i // group, o]

Where all offsets of int4 codes are multiples of scales, each group has the code that stands for 0 in place of them.

A *run* is the codes of one output for 32 neighbouring inputs: 32 bytes. Where a code has 4 bits, a run is 32 words of
16 bits for 128 inputs: word j has inputs j, j + 32, j + 64 and j + 96 in its four places (`CODE_BITS`), so that each
place is a tile of a matrix as it is, and of one group. Runs of all outputs lie side by side, `[runs, out, 32]`, and so
do the scales of a group: a tile of outputs is one piece of memory. A few bit operations dequantize a code (`steps.py`,
`four_bits.py`); 8-bit codes are int8 or e4m3 as devices multiply them (`row_product.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.sizes import tile_count

CodeKind = Literal["int4", "fp4", "int8", "fp8"]
RUN_BYTES = 32
"""Codes of a run, or words of four codes; groups begin at multiples of half a run or, of 4 bits, of a quarter."""
CODES_OF_WORD = 4
CODE_BITS = {
    "int4": ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)),
    "fp4": ((6, 7, 8, 15), (3, 4, 5, 12), (0, 1, 2, 9), (10, 11, 13, 14)),
}
"""Where a word has the bits of its four codes, from the lowest bit on. In fp4 one shift moves the first three codes to
the places of bf16's sign, exponent and mantissa."""
MIN_GROUP_INPUTS = {"int4": 32, "fp4": 32, "int8": 16, "fp8": 16}
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_VALUES = (*E2M1_VALUES, *(-value for value in E2M1_VALUES))
"""Values of the fp4 codes, with the sign in the highest bit (OCP Microscaling Formats 1.0, section 5.3.3)."""
INT4_ZERO_CODE = 8
"""The code of int4 that stands for 0 where groups have no codes of their own for it."""
MAX_INT4_CODE = 15
SINGLE_GROUP_INPUTS = 1 << 30
BLOCK_OUTPUTS = 128
"""Outputs of a block that shares its scales in fp8 checkpoints."""
FP8_NAN_CODE = 0x7F
"""The fp8 code of NaN, without its sign."""


class WeightCodes(NamedTuple):
    """A weight as a checkpoint's reader gives it: w = scales * v + offsets for each group of inputs."""

    values: Tensor  # [out, in]: uint8 codes 0 … 15, int8 or float8_e4m3fn
    scales: Tensor  # fp32 [out, groups]
    group: int
    offsets: Tensor | None = None  # fp32 [out, groups]
    table: tuple[float, ...] = ()  # of 4-bit codes; empty: a code stands for itself

    @property
    def kind(self) -> CodeKind | None:
        if self.values.dtype == torch.uint8:
            return {(): "int4", FP4_VALUES: "fp4"}.get(self.table)  # type: ignore[return-value]
        return "int8" if self.values.dtype == torch.int8 else "fp8"


@dataclass(frozen=True)
class PackedWeight:
    """A weight, or the weights of several experts, packed for the kernels of this package."""

    kind: CodeKind
    codes: Tensor  # uint8 [runs, out, 32], int16 for 4 bits; or of experts [experts, runs, out, 32]
    scales: Tensor  # [groups, out], fp32, or 16 bits where they lose nothing
    offsets: Tensor | None  # the same; or int16 codes of int4 that stand for 0
    inputs: int
    group: int
    by_block: bool = False  # `BLOCK_OUTPUTS` neighbouring outputs, from a multiple on, have the same scales

    @property
    def outputs(self) -> int:
        return self.codes.shape[-2]

    @property
    def in_run(self) -> int:
        return in_run(self.kind)

    @property
    def by_output(self) -> bool:
        """Returns whether each output has a single scale and no offset, so the scale multiplies the sum."""
        return self.scales.shape[-2] == 1 and self.offsets is None

    @property
    def has_zeros(self) -> bool:
        """Returns whether `offsets` are codes that stand for 0."""
        return self.offsets is not None and self.offsets.dtype == torch.int16

    @property
    def name(self) -> str:
        """Returns the key of tuned configs, such as `int4,group=32`."""
        group = "all" if self.scales.shape[-2] == 1 else str(self.group)
        added = "" if self.offsets is None else ",zeros" if self.has_zeros else ",offsets"
        return f"{self.kind},group={group}{added}"

    @property
    def even_group(self) -> int:
        """Returns the inputs of a group for the kernels: with a single group, more than any step has."""
        return self.group if self.scales.shape[-2] > 1 else SINGLE_GROUP_INPUTS

    def runs_of_step(self, max_runs: int) -> int:
        """Returns the runs of a step: at most `max_runs`, a power of two, so that its inputs belong to one group."""
        runs = max_runs
        while self.even_group % (runs * self.in_run) and runs > 1:
            runs //= 2
        return runs

    def tensors(self) -> list[Tensor]:
        return [self.codes, self.scales, *([] if self.offsets is None else [self.offsets])]


def unsupported(weight: WeightCodes) -> str:
    """Returns one sentence that says why the kernels do not take such a weight; empty if supported."""
    if weight.kind is None:
        return "codes of 4 bits stand for themselves or for MXFP4's numbers in the kernels, not for another table's"
    fewest = MIN_GROUP_INPUTS[weight.kind]
    if weight.group % fewest and weight.group < weight.values.shape[1]:
        return f"groups of {weight.kind} weights have a multiple of {fewest} inputs in the kernels, not {weight.group}"
    return ""


def pack(weights: Sequence[WeightCodes], device: torch.device) -> PackedWeight:
    """Packs weights of one kind and group, with as many inputs each, into one whose outputs lie side by side.

    Example: three int4 weights `[4096, 4096]`, `[1024, 4096]`, `[1024, 4096]` in groups of 32 become codes
    `[64, 6144, 32]` and scales `[128, 6144]`.
    """
    kind, inputs, group = weights[0].kind, weights[0].values.shape[1], weights[0].group
    assert kind is not None and not any(map(unsupported, weights))
    assert all((each.kind, each.values.shape[1], each.group) == (kind, inputs, group) for each in weights)
    codes = torch.cat([_codes(each.values, kind).to(device) for each in weights], 1)
    scales = torch.cat([_without_nan(each) for each in weights]).t()
    given = [torch.zeros_like(each.scales) if each.offsets is None else each.offsets for each in weights]
    offsets = _offsets(kind, scales, torch.cat(given).t())
    return PackedWeight(
        kind,
        codes.contiguous(),
        narrowed(scales).to(device).contiguous(),
        None if offsets is None else offsets.to(device).contiguous(),
        inputs,
        min(group, tile_count(inputs, RUN_BYTES) * RUN_BYTES),
        shared_in_blocks(scales),
    )


def one_of(weight: PackedWeight, expert: int) -> PackedWeight:
    offsets = None if weight.offsets is None else weight.offsets[expert]
    return replace(weight, codes=weight.codes[expert], scales=weight.scales[expert], offsets=offsets)


def narrowed(numbers: Tensor) -> Tensor:
    """Converts fp32 values to bf16, or else to fp16, if that is exact for all values."""
    for dtype in (torch.bfloat16, torch.float16):
        short = numbers.to(dtype)
        if ((short.float() == numbers) | numbers.isnan()).all():
            return short
    return numbers


def shared_in_blocks(scales: Tensor) -> bool:
    """Returns whether each `BLOCK_OUTPUTS` outputs of `[groups, out]` scales, from a multiple on, have the same."""
    return scales.equal(scales[:, ::BLOCK_OUTPUTS].repeat_interleave(BLOCK_OUTPUTS, 1)[:, : scales.shape[1]])


def in_run(kind: CodeKind) -> int:
    """Returns the inputs of a run."""
    return RUN_BYTES * (CODES_OF_WORD if kind in ("int4", "fp4") else 1)


def _codes(values: Tensor, kind: CodeKind) -> Tensor:
    """Returns codes `[runs, out, 32]`; codes of padding inputs do not matter, as x is 0 there."""
    outputs, inputs = values.shape
    runs = tile_count(inputs, in_run(kind))
    codes = functional.pad(values.view(torch.uint8), (0, runs * in_run(kind) - inputs))
    if kind in ("int4", "fp4"):
        places = codes.view(outputs, runs, CODES_OF_WORD, RUN_BYTES).short()
        codes = torch.zeros_like(places[:, :, 0])
        for place, bits in enumerate(CODE_BITS[kind]):
            for bit, target in enumerate(bits):
                codes |= (places[:, :, place] >> bit & 1) << target
    return codes.view(outputs, runs, RUN_BYTES).transpose(0, 1)


def _without_nan(weight: WeightCodes) -> Tensor:
    """Returns the scales `[out, groups]`, NaN for groups with a NaN code: so the kernels need not check for it."""
    if weight.kind != "fp8":
        return weight.scales
    wrong = weight.values.view(torch.uint8) & FP8_NAN_CODE == FP8_NAN_CODE
    if not wrong.any():
        return weight.scales
    groups = weight.scales.shape[1]
    filled = functional.pad(wrong, (0, groups * weight.group - wrong.shape[1]))
    return weight.scales.masked_fill(filled.view(len(wrong), groups, -1).any(2), torch.nan)


def _offsets(kind: CodeKind, scales: Tensor, offsets: Tensor) -> Tensor | None:
    """Returns offsets, or codes of int4 that stand for 0; None if all offsets are 0 or all these codes are 8.

    Offsets of int4 are those to the code 8. NaN is not 0.
    """
    if kind != "int4":
        return narrowed(offsets) if offsets.any() else None
    zeros = (-offsets / scales).round()
    zeros = zeros.where(scales.isfinite() & (scales != 0), INT4_ZERO_CODE)
    exact = (zeros * scales == -offsets) | ~scales.isfinite()
    if not (exact & (zeros >= 0) & (zeros <= MAX_INT4_CODE)).all():
        return narrowed(offsets + scales * INT4_ZERO_CODE)
    return None if (zeros == INT4_ZERO_CODE).all() else zeros.short()


def with_offsets(packed: PackedWeight) -> PackedWeight:
    """Returns the same weight with offsets in fp32 in place of the codes that stand for 0."""
    zeros = packed.offsets if packed.has_zeros else None
    return packed if zeros is None else replace(packed, offsets=(INT4_ZERO_CODE - zeros) * packed.scales.float())


def reference(packed: PackedWeight) -> Tensor:
    """Returns the dequantized weight `[out, in]` in fp64, with torch operators."""
    codes = packed.codes.transpose(0, 1)  # [out, runs, 32]
    if packed.in_run > RUN_BYTES:
        bits = [torch.stack([codes >> bit & 1 for bit in each]) for each in CODE_BITS[packed.kind]]
        weights = torch.tensor([1, 2, 4, 8], device=codes.device).view(4, 1, 1, 1)
        codes = torch.stack([(each * weights).sum(0) for each in bits], 2)
    codes = codes.flatten(1)[:, : packed.inputs]
    match packed.kind:
        case "int4":
            values = codes.double() - INT4_ZERO_CODE
        case "fp4":
            values = torch.tensor(FP4_VALUES, dtype=torch.float64, device=codes.device)[codes.int()]
        case "int8":
            values = codes.contiguous().view(torch.int8).double()
        case "fp8":
            values = codes.contiguous().view(torch.float8_e4m3fn).double()
    groups = torch.arange(packed.inputs, device=codes.device) // packed.group
    groups = groups.clamp(max=len(packed.scales) - 1)
    offsets = 0.0 if packed.offsets is None else packed.offsets.double()[groups].t()
    if packed.has_zeros:
        values, offsets = values + INT4_ZERO_CODE - offsets, 0.0
    return values * packed.scales.double()[groups].t() + offsets
