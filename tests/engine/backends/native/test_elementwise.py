"""Native norm, rotation and gate against float64, and bits that depend neither on the batch nor on the place in it."""

import ctypes
import math
from typing import Literal, get_args

import pytest
import torch
from msgspec import structs
from torch import Tensor

from engine.backends.native.library import DTYPE_CODES
from engine.model.config import Activation
from engine.model.rope import Rope, inverse_frequencies
from engine.parallel.sums import tree_sum
from tests.engine.backends.native.elementwise import NativeElementwise
from tests.engine.backends.native.measures import LIMITS, random, relative_error
from tests.engine.configs import attention

EPS = 1e-5
ROPE = Rope(dim=2, theta=500.0, magnitude=1.1)
WIDTHS = [1, 2, 7, 16, 63, 257, 576]


def make(native: ctypes.CDLL, dtype: torch.dtype = torch.float32, dim: int = 2) -> NativeElementwise:
    return NativeElementwise(native, [rope_of(dim)], dtype, EPS)


def rope_of(dim: int) -> Rope:
    return structs.replace(ROPE, dim=dim)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 63, 257])
@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
def test_add_norm(native: ctypes.CDLL, rows: int, width: int, dtype: torch.dtype, limit: float) -> None:
    hidden, change = random(rows, width, seed=1, dtype=dtype), random(rows, width, seed=2, dtype=dtype)
    weight = random(width, seed=3)
    total = hidden + change
    found, norm = make(native, dtype).add_norm(hidden, change, weight)
    assert torch.equal(found, total)
    assert relative_error(norm, normed(total, weight)) < limit
    again, plain = make(native, dtype).add_norm(total.clone(), None, weight)
    assert torch.equal(again, total) and torch.equal(plain, norm)


@pytest.mark.parametrize("numbers", [1, 33, 9_001])
@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_ranks_are_added_in_the_tree(
    native: ctypes.CDLL, count: int, numbers: int, dtype: torch.dtype
) -> None:
    parts = [random(numbers, seed=rank, dtype=torch.float32) for rank in range(count)]
    places = (ctypes.c_void_p * count)(*(part.data_ptr() for part in parts))
    found = torch.empty(numbers, dtype=dtype)
    native.baton_add_parts(DTYPE_CODES[dtype], places, count, numbers, found.data_ptr())
    assert torch.equal(found, tree_sum(parts).to(dtype))


@pytest.mark.parametrize(
    ("dim", "norm", "turned"),
    [
        (dim, norm, [1.0, 0.5, 0.0][(number + other) % 3])
        for number, dim in enumerate([2, 6, 16, 22, 64, 130, 256])
        for other, norm in enumerate(["none", "head", "all"])
    ],
)
@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
def test_rotate(
    native: ctypes.CDLL,
    dim: int,
    norm: Literal["none", "head", "all"],
    turned: float,
    dtype: torch.dtype,
    limit: float,
) -> None:
    """Two heads of queries and one of keys are turned and normed; two heads of values behind them stay."""
    heads, shape = random(63, 5, dim, seed=1, dtype=dtype), structs.replace(attention(2, 1, dim), norm=norm)
    weight = random(3, dim, seed=2) if norm != "none" else None
    positions, rope = torch.arange(63) * 37, rope_of(max(2, int(dim * turned) // 2 * 2))
    expected = heads.double()
    x = expected[:, :3].clone()
    if weight is not None and norm == "head":
        x = normed(x, weight)
    elif weight is not None:
        parts = [normed(x[:, part].flatten(1), weight[part].flatten()) for part in (slice(0, 2), slice(2, 3))]
        x = torch.cat(parts, 1).view(63, 3, dim)
    if turned:
        radians = (positions.float()[:, None, None] * inverse_frequencies(rope)).double()
        cos, sin = radians.cos() * ROPE.magnitude, radians.sin() * ROPE.magnitude
        left, right = x[..., : rope.dim].chunk(2, -1)
        x[..., : rope.dim] = torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
    expected[:, :3] = x
    between = NativeElementwise(native, [rope], dtype, EPS)
    between.rotate(heads[:, :3], between.angles(positions, rope) if turned else None, weight, shape)
    assert relative_error(heads, expected) < limit


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
@pytest.mark.parametrize("activation", get_args(Activation))
def test_gate(native: ctypes.CDLL, activation: Activation, width: int, dtype: torch.dtype, limit: float) -> None:
    gate_up = random(63, 2 * width, seed=1, dtype=dtype) * 4
    left, right = gate_up.double().chunk(2, -1)
    expected = left * left.sigmoid() * right
    if activation == "gelu_tanh":
        expected = left / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (left + 0.044715 * left**3))) * right
    elif activation == "clamped_swiglu":
        left, right = left.clamp(max=7), right.clamp(-7, 7)
        expected = (right + 1) * left * (1.702 * left).sigmoid()
    assert relative_error(make(native, dtype).gate(gate_up, activation), expected) < limit


@pytest.mark.parametrize("activation", get_args(Activation))
def test_what_is_not_a_number_stays_one(native: ctypes.CDLL, activation: Activation) -> None:
    for gate_up in ([math.nan, 1.0], [1.0, math.nan]):
        assert make(native).gate(torch.tensor([gate_up]), activation).isnan().all()


def test_the_gate_far_from_zero(native: ctypes.CDLL) -> None:
    x = torch.tensor([0.0, -0.0, 88.0, -88.0, 1e4, -1e4, 3e38, -3e38, math.inf, -86.0])
    found = make(native).gate(torch.cat((x, torch.ones(10)))[None], "silu")[0]
    expected = torch.tensor([0, 0, 88, 0, 1e4, 0, 3e38, 0, math.inf, -86 * math.exp(-86)], dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-35)
    assert make(native).gate(torch.tensor([[math.nan, 1.0]]), "silu").isnan().all()


@pytest.mark.parametrize("width", [6, 63, 576])
def test_bits_do_not_depend_on_the_batch(native: ctypes.CDLL, width: int) -> None:
    rope = rope_of(width + width % 2)
    between = make(native, dim=rope.dim)
    hidden, weight = random(257, width, seed=1), random(width, seed=2)
    gate_up = random(257, 2 * width, seed=3)
    positions = torch.arange(257) * 11
    heads = random(257, 3, width + width % 2, seed=4)
    norms = between.add_norm(hidden, hidden.clone(), weight)[1]
    gates, (cosine, sine) = between.gate(gate_up, "silu"), between.angles(positions, rope)
    turned = heads.clone()
    shape = attention(2, 1, rope.dim)
    between.rotate(turned, (cosine, sine), None, shape)
    for begin, end in [(0, 1), (256, 257), (5, 12), (100, 164), (1, 256)]:
        own = hidden[begin:end]
        assert torch.equal(between.add_norm(own, None, weight)[1], norms[begin:end])
        assert torch.equal(between.gate(gate_up[begin:end], "silu"), gates[begin:end])
        angles = between.angles(positions[begin:end], rope)
        assert torch.equal(angles[0], cosine[begin:end]) and torch.equal(angles[1], sine[begin:end])
        part = heads[begin:end].clone()
        between.rotate(part, angles, None, shape)
        assert torch.equal(part, turned[begin:end])
