"""The operators as they are compiled for other processors than this one: what each has kernels of its own for.

A level runs where this processor has its instructions; the first is what a worker here uses.
"""

import ctypes
import mmap
from typing import get_args

import pytest
import torch

from engine.backends.native.linear_layers.linear import NativeLinear, prove
from engine.model.config import Activation
from tests.engine.backends.native.measures import LIMITS, random, relative_error
from tests.engine.backends.native.test_elementwise import test_add_norm as check_add_norm
from tests.engine.backends.native.test_elementwise import test_gate as check_gate
from tests.engine.backends.native.test_elementwise import test_rotate as check_rotate


def test_it_proves_itself(level: ctypes.CDLL) -> None:
    prove(level)


@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (17, 257), (129, 1535), (64, 2080), (3, 9001)])
def test_linear_equals_the_reference_and_rows_are_on_their_own(
    level: ctypes.CDLL, outputs: int, inputs: int, dtype: torch.dtype, limit: float
) -> None:
    """Row by row to the bit, in bf16 as well: each level adds up a row's products in one order."""
    weight, offset = random(outputs, inputs, seed=1, dtype=dtype), random(outputs, seed=2, dtype=dtype)
    layer = NativeLinear(level, weight, offset)
    x = random(257, 2 * inputs, seed=3, dtype=dtype)[:, inputs:]
    expected = x.double() @ weight.double().T + offset.double()
    whole = layer(x)
    assert relative_error(whole, expected) < limit
    for rows in (1, 2, 7, 16, 17, 31, 32, 33, 63):
        for begin in (0, 130):
            assert torch.equal(layer(x[begin : begin + rows]), whole[begin : begin + rows]), rows


def at_a_wall(values: torch.Tensor) -> torch.Tensor:
    """A copy that ends where a page begins that nobody may touch."""
    size = values.numel() * values.element_size()
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(whole.data_ptr() + pages), mmap.PAGESIZE, 0) == 0
    copy = whole[pages - size : pages].view(values.dtype).view(values.shape)
    copy.copy_(values)
    return copy


@pytest.mark.parametrize(
    ("rows", "inputs"),
    [(1, 63), (1, 96), (7, 96), (7, 257), (17, 257), (17, 1), (33, 1), (33, 63), (257, 63), (257, 257)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_nothing_is_read_behind_the_last_row(level: ctypes.CDLL, rows: int, inputs: int, dtype: torch.dtype) -> None:
    """Tiles have no instrumentation of a sanitizer: a read too far ends this process."""
    weight, offset = random(65, inputs, seed=1, dtype=dtype), random(65, seed=2, dtype=dtype)
    x = random(rows, inputs, seed=3, dtype=dtype)
    near = NativeLinear(level, at_a_wall(weight), at_a_wall(offset))
    assert torch.equal(near(at_a_wall(x)), NativeLinear(level, weight, offset)(x))


@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
def test_what_lies_between(level: ctypes.CDLL, dtype: torch.dtype, limit: float) -> None:
    check_add_norm(level, 63, 257, dtype, limit)
    check_rotate(level, 22, "all", 0.5, dtype, limit)
    for activation in get_args(Activation):
        check_gate(level, activation, 257, dtype, limit)
