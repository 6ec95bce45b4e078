"""Quantized weights in the native linear layer, against what they stand for."""

import ctypes

import pytest
import torch

from engine.backends.native.linear import NativeLinear
from engine.model.quantized import Weight
from tests.engine.backends.native.measures import random, relative_error
from tests.engine.backends.native.quantized_weights import KINDS, quantized_weight

SIZES = [(1, 1), (17, 257), (129, 1535), (64, 2080)]
"""(outputs, inputs): tails of panels, units and groups."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_in_fp32_a_weight_is_what_it_stands_for(level: ctypes.CDLL, kind: str, outputs: int, inputs: int) -> None:
    """To the bit where groups have scales; a scale of an output multiplies the sum, so roundings differ there."""
    weight = quantized_weight(outputs, inputs, **KINDS[kind])
    offset, x = random(outputs, seed=2), random(97, inputs, seed=3)
    found = NativeLinear(level, weight, offset, torch.float32)(x)
    expected = NativeLinear(level, weight.dequantized(), offset)(x)
    if weight.order is None and (
        weight.group < inputs or (weight.offsets is not None and "symmetric" not in KINDS[kind])
    ):
        assert torch.equal(found, expected)
    assert relative_error(found, x.double() @ weight.dequantized().double().T + offset.double()) < 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_parts_of_different_forms_lie_side_by_side(level: ctypes.CDLL, dtype: torch.dtype) -> None:
    """Each as it would be alone, to the bit; neighbours of one form are one part."""
    inputs = 320
    parts = [quantized_weight(7 + 9 * seed, inputs, seed=seed, **KINDS[kind]) for seed, kind in enumerate(KINDS)]
    given: list[Weight] = [
        parts[0],
        parts[0],
        *parts[1:4],
        random(70, inputs, seed=5),
        *parts[4:],
        random(3, inputs, seed=6),
    ]
    offset = random(sum(map(len, given)), seed=7, dtype=dtype)
    x = random(37, 2 * inputs, seed=8, dtype=dtype)[:, inputs:]
    found = NativeLinear(level, given, offset, dtype)(x).split([len(each) for each in given], 1)
    for part, each, own in zip(given, found, offset.split([len(each) for each in given]), strict=True):
        assert torch.equal(each, NativeLinear(level, part, own.contiguous(), dtype)(x))
