"""Quantized weights in the native linear layer, against what they stand for."""

import ctypes
from dataclasses import replace

import pytest
import torch

from engine.backends.native.linear_layers.linear import NativeLinear
from engine.model.quantized import Quantized, Weight
from tests.engine.backends.native.measures import random, relative_error
from tests.engine.backends.native.quantized_weights import KINDS, in_int8, quantized_weight

SIZES = [(1, 1), (17, 257), (129, 1535), (64, 2080)]
"""(outputs, inputs): tails of panels, units and groups."""
KINDS_AND_SIZES = [(kind, *SIZES[(number + more) % 4]) for number, kind in enumerate(KINDS) for more in (0, 1)]
"""Each kind with two neighbouring sizes: one that is cut into whole panels, or a tail, and the next one."""


@pytest.mark.parametrize(("kind", "outputs", "inputs"), KINDS_AND_SIZES)
def test_in_fp32_a_weight_is_what_it_stands_for(level: ctypes.CDLL, kind: str, outputs: int, inputs: int) -> None:
    """Compares to the bit where groups have scales.

    A scale of an output multiplies the sum, so roundings differ there.
    """
    weight = quantized_weight(outputs, inputs, **KINDS[kind])
    offset, x = random(outputs, seed=2), random(97, inputs, seed=3)
    found = NativeLinear(level, weight, offset, torch.float32)(x)
    expected = NativeLinear(level, weight.dequantized(), offset)(x)
    if weight.order is None and (
        weight.group < inputs or (weight.offsets is not None and "symmetric" not in KINDS[kind])
    ):
        assert torch.equal(found, expected)
    assert relative_error(found, x.double() @ weight.dequantized().double().T + offset.double()) < 2e-5


@pytest.mark.parametrize(
    ("kind", "outputs", "inputs"), [each for each in KINDS_AND_SIZES if not each[0].startswith("fp8")]
)
def test_in_bf16_rows_are_multiplied_in_int8(level: ctypes.CDLL, kind: str, outputs: int, inputs: int) -> None:
    """Compares exactly but for that, sums in fp32, and the result's rounding; and a row's bits depend on that row only.

    A table's units are half as long where a processor adds products of bytes in 16 bits.
    """
    weight = quantized_weight(outputs, inputs, **KINDS[kind])
    offset = random(outputs, seed=2, dtype=torch.bfloat16)
    x = random(257, 2 * inputs, seed=3, dtype=torch.bfloat16)[:, inputs:]
    layer = NativeLinear(level, weight, offset, torch.bfloat16)
    found, exact = layer(x), weight.dequantized().double()
    ordered = x if weight.order is None else x[:, weight.order]
    if weight.order is not None:
        exact = exact[:, weight.order]
    units = [16 if weight.group < inputs and weight.group % 32 else 32, *([16] if weight.table else [])]
    errors = [relative_error(found, in_int8(ordered, unit) @ exact.T + offset.double()) for unit in units]
    assert min(errors) < 4e-3
    for rows in (1, 2, 5, 16, 17, 33):
        for begin in (0, 130):
            assert torch.equal(layer(x[begin : begin + rows]), found[begin : begin + rows]), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_parts_of_different_forms_lie_side_by_side(level: ctypes.CDLL, dtype: torch.dtype) -> None:
    """Compares each to what it would be alone, to the bit; neighbours of one form are one part."""
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


@pytest.mark.parametrize("rows", [1, 4, 37])
def test_threads_that_share_parts_of_different_forms_change_nothing(level: ctypes.CDLL, rows: int) -> None:
    """Compares to the bit, one part's panels having several times the bytes of another's; x is long and short."""
    before = torch.get_num_threads()
    try:
        for inputs in (96, 9000):
            kinds = ("int4 by 64, ordered", "int8 by output", "int4 by 32", "fp8 by 128")
            parts: list[Weight] = [quantized_weight(150, inputs, seed=i, **KINDS[kind]) for i, kind in enumerate(kinds)]
            layer = NativeLinear(level, [*parts, random(70, inputs, seed=9)], None, torch.bfloat16)
            x, found = random(rows, inputs, seed=8, dtype=torch.bfloat16), []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                found.append(layer(x))
            assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["int4 by 32", "int8 by output", "int8 by 128 with offsets"])
def test_in_bf16_a_scale_that_is_not_a_number_spoils_its_output_only(level: ctypes.CDLL, kind: str) -> None:
    whole = quantized_weight(70, 256, **KINDS[kind])
    scales, x = whole.scales.clone(), random(9, 256, seed=3, dtype=torch.bfloat16)
    scales[65, -1] = torch.nan
    found = NativeLinear(level, replace(whole, scales=scales), None, torch.bfloat16)(x)
    expected = NativeLinear(level, whole, None, torch.bfloat16)(x)
    spoiled = torch.arange(70) == 65
    assert found[:, spoiled].isnan().all() and torch.equal(found[:, ~spoiled], expected[:, ~spoiled])


@pytest.mark.parametrize("kind", ["int4 by 32", "int8 by output", "int8 by 128 with offsets"])
@pytest.mark.parametrize("strange", [torch.nan, -torch.inf], ids=str)
def test_in_bf16_an_input_that_is_not_finite_spoils_its_row_only(level: ctypes.CDLL, kind: str, strange: float) -> None:
    """Rows of x are quantized to int8 in units, and int8 has no NaN: the unit's scale has to carry it."""
    inputs = 257
    layer = NativeLinear(level, quantized_weight(70, inputs, **KINDS[kind]), None, torch.bfloat16)
    x = random(9, inputs, seed=3, dtype=torch.bfloat16)
    expected = layer(x)
    for place in (0, 15, 16, 100, inputs - 1):
        spoiled = x.clone()
        spoiled[4, place] = strange
        found = layer(spoiled)
        assert not found[4].isfinite().any(), place
        assert torch.equal(found[:4], expected[:4]) and torch.equal(found[5:], expected[5:]), place


FP8 = [kind for kind in KINDS if kind.startswith("fp8")]


@pytest.mark.parametrize("kind", FP8)
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_in_bf16_numbers_of_fp8_are_exact(level: ctypes.CDLL, kind: str, outputs: int, inputs: int) -> None:
    """Shows that only the result is rounded to bf16; and a row's bits depend on that row only."""
    weight = quantized_weight(outputs, inputs, **KINDS[kind])
    offset, x = random(outputs, seed=2, dtype=torch.bfloat16), random(131, inputs, seed=3, dtype=torch.bfloat16)
    layer = NativeLinear(level, weight, offset, torch.bfloat16)
    whole = layer(x)
    expected = x.double() @ weight.dequantized().double().T + offset.double()
    assert relative_error(whole, expected) < 4e-3
    for rows in (1, 2, 5, 17, 33, 97):
        assert torch.equal(layer(x[30 : 30 + rows]), whole[30 : 30 + rows]), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("group", [128, 256], ids=["by 128", "by output"])
def test_each_code_of_fp8_is_its_number(level: ctypes.CDLL, group: int, dtype: torch.dtype) -> None:
    """Compares to the bit, the denormal ones too, at each place of the depth.

    A NaN is one in its output, and in no other.
    """
    codes = torch.arange(256, dtype=torch.uint8).view(256, 1).expand(256, 256)
    values = torch.where(torch.eye(256, dtype=torch.bool), codes, 0).view(torch.float8_e4m3fn)
    weight = Quantized("fp8", values, torch.ones(256, 256 // group), group)
    found = NativeLinear(level, weight, None, dtype)(torch.ones(1, 256, dtype=dtype))[0].float()
    expected = codes[:, 0].contiguous().view(torch.float8_e4m3fn).float()
    assert expected.isnan().sum() == 2 and torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())
