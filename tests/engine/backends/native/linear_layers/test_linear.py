"""The native linear layer against float64, and the contract that a row's bits depend on that row only."""

import ctypes
import math

import pytest
import torch

from engine.backends.native.linear_layers.linear import NativeLinear
from tests.engine.backends.native.measures import LIMITS, random, relative_error

SIZES = [(1, 1), (7, 3), (16, 256), (17, 257), (63, 63), (64, 1), (129, 1535), (960, 576)]
"""(outputs, inputs): tails of panels, vectors, pairs and blocks of the depth."""


@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_it_equals_the_reference(
    native: ctypes.CDLL, outputs: int, inputs: int, bias: bool, dtype: torch.dtype, limit: float
) -> None:
    weight = random(outputs, inputs, seed=1, dtype=dtype)
    offset = random(outputs, seed=2, dtype=dtype) if bias else None
    layer = NativeLinear(native, weight, offset)
    assert sum(held.numel() for held in layer.held()) >= weight.numel() + (outputs if bias else 0)
    for rows in (0, 1, 2, 5, 6, 7, 63, 96, 97, 257):
        x = random(rows, 2 * inputs, seed=rows, dtype=dtype)[:, inputs:]  # rows need not be neighbours
        expected = x.double() @ weight.double().T + (offset.double() if offset is not None else 0)
        found = layer(x)
        assert found.dtype == dtype
        if rows:
            assert relative_error(found, expected) < limit, rows


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("outputs", "inputs"), [(17, 257), (960, 576), (100, 1100)])
def test_a_rows_bits_depend_on_that_row_only(native: ctypes.CDLL, outputs: int, inputs: int, threads: int) -> None:
    layer = NativeLinear(native, random(outputs, inputs, seed=1), random(outputs, seed=2))
    x = random(257, inputs, seed=3)
    before = torch.get_num_threads()
    alone = torch.cat([layer(x[row : row + 1]) for row in range(len(x))])
    torch.set_num_threads(threads)
    try:
        for rows in (2, 3, 4, 5, 6, 7, 32, 64, 97, 257):
            for begin in range(0, len(x) - rows + 1, max(1, rows // 2)):
                assert torch.equal(layer(x[begin : begin + rows]), alone[begin : begin + rows])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_what_is_not_finite_stays_in_its_row(native: ctypes.CDLL, dtype: torch.dtype) -> None:
    layer = NativeLinear(native, random(33, 65, seed=1, dtype=dtype), None)
    x = random(8, 65, seed=2, dtype=dtype)
    clean = layer(x)
    x[3, 64], x[5, 0] = math.nan, math.inf
    found = layer(x)
    assert found[3].isnan().all() and not found[5].isfinite().any()
    assert torch.equal(found[[0, 1, 2, 4, 6, 7]], clean[[0, 1, 2, 4, 6, 7]])


def test_bf16_is_rounded_to_nearest_even(native: ctypes.CDLL) -> None:
    """As PyTorch rounds it: ties, overflow to infinity, and NaN included."""
    one = NativeLinear(native, torch.eye(2, dtype=torch.bfloat16), None)
    high = torch.tensor([1.0, 1.0078125, 3.3895e38, math.nan, math.inf, -0.0], dtype=torch.bfloat16)
    low = torch.tensor([0.00390625, 0.00390625, 1e38, 1.0, 1.0, 0.0], dtype=torch.bfloat16)
    both = NativeLinear(native, torch.ones(1, 2, dtype=torch.bfloat16), None)
    x = torch.stack((high, low), 1)
    expected = (high.float() + low.float()).to(torch.bfloat16)
    torch.testing.assert_close(both(x)[:, 0], expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(one(x[:3]), x[:3], rtol=0, atol=0)
