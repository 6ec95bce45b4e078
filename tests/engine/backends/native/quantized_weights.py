"""Random weights in the forms that checkpoints have, for tests."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.model.quantized import Form, Quantized
from tests.engine.backends.native.measures import random

MXFP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""What the codes of MXFP4 stand for."""
KINDS: dict[str, dict[str, Any]] = {
    "int4 by 32": {"form": "int4", "group": 32, "symmetric": True},
    "int4 by 16": {"form": "int4", "group": 16, "symmetric": True},
    "int4 by 128 with offsets": {"form": "int4", "group": 128, "offsets": True},
    "int4 by 64, ordered": {"form": "int4", "group": 64, "offsets": True, "order": True},
    "int4 by output": {"form": "int4", "symmetric": True},
    "int4 by output with offsets": {"form": "int4", "offsets": True},
    "mxfp4": {"form": "int4", "group": 32, "table": MXFP4},
    "int8 by 16": {"form": "int8", "group": 16},
    "int8 by 48, ordered": {"form": "int8", "group": 48, "order": True},
    "int8 by 128 with offsets": {"form": "int8", "group": 128, "offsets": True},
    "int8 by output": {"form": "int8"},
    "fp8 by 128": {"form": "fp8", "group": 128},
    "fp8 by 160": {"form": "fp8", "group": 160},
    "fp8 by 48, ordered": {"form": "fp8", "group": 48, "order": True},
    "fp8 by output": {"form": "fp8"},
}
"""Arguments of `quantized_weight`."""


def quantized_weight(
    outputs: int,
    inputs: int,
    form: Form,
    seed: int = 1,
    group: int | None = None,
    symmetric: bool = False,
    offsets: bool = False,
    table: tuple[float, ...] = (),
    order: bool = False,
) -> Quantized:
    """Makes a weight of random values, without a `group` with a scale for each output; scales have fp16's digits."""
    generator = torch.Generator().manual_seed(seed)
    group = group or inputs
    lowest, end = (0, 16) if form == "int4" else (-128, 128)
    values = torch.randint(lowest, end, (outputs, inputs), generator=generator)
    if form == "fp8":
        codes = torch.randint(0, 127, (outputs, inputs), generator=generator) + 128 * (values & 1)  # every number
        values, end = codes.to(torch.uint8).view(torch.float8_e4m3fn), lowest + 256
    scales = random(outputs, -(-inputs // group), seed=seed + 1).half().float() / (end - lowest)
    added = None
    if symmetric:
        added = scales * -8
    elif offsets:
        added = (scales * torch.randint(-12, 1, scales.shape, generator=generator)).half().float()
    return Quantized(
        form,
        values.to({"int4": torch.uint8, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[form]),
        scales,
        group,
        added,
        table,
        torch.randperm(inputs, generator=generator) if order else None,
    )


def in_int8(x: Tensor, unit: int = 32) -> Tensor:
    """Returns the numbers that rows of x stand for in int8: in units of inputs that have a scale each."""
    whole = functional.pad(x.float(), (0, -x.shape[1] % unit)).view(len(x), -1, unit)
    largest = whole.abs().amax(2, keepdim=True)
    codes = (whole.double() * torch.where(largest == 0, 0, torch.full_like(largest, 127) / largest)).round()
    moved = (codes * (largest / 127) - whole).abs()
    assert (moved <= largest / 127 * 0.501).all(), "by half a step at most, and a rounding"
    return (codes * (largest / 127)).view(len(x), -1)[:, : x.shape[1]]
