"""Random weights of every kind that the kernels know, as readers of checkpoints give them."""

import torch
from torch import Tensor

from kernels.quantized.packed import FP4_VALUES, CodeKind, WeightCodes
from kernels.sizes import tile_count

KINDS: tuple[CodeKind, ...] = ("int4", "fp4", "int8", "fp8")


def drawn(
    kind: CodeKind, outputs: int, inputs: int, group: int, *, offsets: bool = False, zeros: bool = False
) -> WeightCodes:
    """Makes values of all codes, whose products with inputs about 1 are about 1.

    The code 8 of int4 stands for 0, or with `zeros` a code of each group.
    """
    groups = (outputs, tile_count(inputs, group))
    scales = (torch.rand(groups) + 0.5) * inputs**-0.5
    given = torch.randn(groups) * inputs**-0.5 if offsets else None
    match kind:
        case "int4":
            shift = scales * -(torch.randint(16, groups) if zeros else 8)
            codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
            return WeightCodes(codes, scales, group, shift if given is None else shift + given)
        case "fp4":
            return WeightCodes(
                torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8), scales, group, given, FP4_VALUES
            )
        case "int8":
            values = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8)
            return WeightCodes(values, scales / 64, group, None if given is None else given / 64)
        case "fp8":
            codes = torch.randint(0, 256, (outputs, inputs), dtype=torch.uint8)
            codes = torch.where(codes & 127 == 127, 0, codes)  # not a number
            return WeightCodes(codes.view(torch.float8_e4m3fn), scales / 100, group, given)


def exact(weight: WeightCodes) -> Tensor:
    """Returns what a weight stands for, fp64 `[out, in]`."""
    values = torch.tensor(weight.table).double()[weight.values.int()] if weight.table else weight.values.double()
    found = values * spread(weight, weight.scales)
    return found if weight.offsets is None else found + spread(weight, weight.offsets)


def magnitudes(weight: WeightCodes) -> Tensor:
    """Returns the same of the magnitudes of both terms, those of int4 counted from the code 8, as the kernels do."""
    values = torch.tensor(weight.table).double()[weight.values.int()] if weight.table else weight.values.double()
    offsets = torch.zeros_like(weight.scales) if weight.offsets is None else weight.offsets
    if not weight.table and weight.values.dtype == torch.uint8:
        values, offsets = values - 8, offsets + weight.scales * 8
    return (values * spread(weight, weight.scales)).abs() + spread(weight, offsets).abs()


def spread(weight: WeightCodes, groups: Tensor) -> Tensor:
    """Returns what each weight `[out, in]` has of its group, in fp64."""
    return groups.double().repeat_interleave(weight.group, 1)[:, : weight.values.shape[1]]
