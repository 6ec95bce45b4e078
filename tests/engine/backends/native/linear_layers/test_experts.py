"""The native mixture of experts against float64, and the contract that a row's bits depend on that row only."""

import ctypes
import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from msgspec import structs
from torch import Tensor

from engine.backends.native.linear_layers.experts import MAX_EXPERTS, ExpertsBuffers, NativeExperts, layer_arguments
from engine.backends.native.linears import NativeLinears
from engine.backends.reference.elementwise import gated
from engine.backends.reference.linear import ReferenceLinears
from engine.backends.reference.routing import route
from engine.model.config import Activation, ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors
from engine.model.layers.dense import DenseWeights
from engine.model.layers.experts import ExpertsWeights
from engine.model.layers.linear import LinearWeights
from engine.model.quantized import Quantized, dequantized
from tests.engine.backends.native.measures import LIMITS, random, relative_error
from tests.engine.backends.native.quantized_weights import KINDS, in_int8, quantized_weight

SIZES = {
    "odd": (65, ExpertsMLP(experts=7, used=3, intermediate=33)),
    "one": (64, ExpertsMLP(experts=1, used=1, intermediate=1)),
    "one of many": (16, ExpertsMLP(experts=50, used=1, intermediate=96)),
    "all": (130, ExpertsMLP(experts=4, used=4, intermediate=64)),
    "deep": (520, ExpertsMLP(experts=3, used=2, intermediate=257)),
}
"""Hidden sizes and mixtures: tails of panels, vectors and pairs; most of the experts have no row, or one, or all."""


def tensors(mlp: ExpertsMLP, hidden: int, dtype: torch.dtype) -> list[ExpertTensors]:
    """Weights like a model's: what goes in and what comes out are about 1."""
    given = []
    for seed in range(0, 4 * mlp.experts, 4):
        gate_up = random(2 * mlp.intermediate, hidden, seed=seed, dtype=dtype) / math.sqrt(hidden)
        down = random(hidden, mlp.intermediate, seed=seed + 1, dtype=dtype) / math.sqrt(mlp.intermediate)
        widths = (2 * mlp.intermediate, hidden) if mlp.bias else ()
        biases = (random(width, seed=seed + 2, dtype=dtype) for width in widths)
        given.append(ExpertTensors(gate_up.chunk(2), down, *biases))
    return given


def routed(tokens: int, mlp: ExpertsMLP, seed: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(tokens, mlp.experts, generator=generator).argsort(1)[:, : mlp.used].int().contiguous()
    return chosen, torch.rand(tokens, mlp.used, generator=generator)


def by_hand(
    x: Tensor,
    chosen: Tensor,
    shares: Tensor,
    given: list[ExpertTensors],
    activation: Activation,
    taken: Callable[[Tensor], Tensor] = Tensor.double,
) -> Tensor:
    """Computes in float64, for every token, each of its experts alone; what is between the products is rounded as x is.

    `taken` says what a product takes rows of x for.
    """

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return taken(x) @ weight.double().T + (0 if bias is None else bias.double())

    rows = []
    for row, experts, weights in zip(x, chosen.tolist(), shares.double(), strict=True):
        sum_ = torch.zeros(x.shape[1], dtype=torch.float64)
        for expert, weight in zip(experts, weights, strict=True):
            e = given[expert]
            inner = gated(product(row[None], torch.cat(e.gate_up), e.gate_up_bias).to(x.dtype).double(), activation)
            sum_ += weight * product(inner.to(x.dtype), e.down, e.down_bias)[0]
        rows.append(sum_)
    return torch.stack(rows)


def native_experts(
    native: ctypes.CDLL, mlp: ExpertsMLP, hidden: int, dtype: torch.dtype, given: list[ExpertTensors]
) -> NativeExperts:
    return NativeLinears(native, dtype).experts(mlp, hidden, given)


@pytest.fixture(params=["silu", "gelu_tanh", "clamped_swiglu"])
def activation(request: pytest.FixtureRequest) -> Activation:
    found: Activation = request.param
    return found


@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
@pytest.mark.parametrize("size", SIZES)
def test_it_equals_the_formula(level: ctypes.CDLL, size: str, dtype: torch.dtype, limit: float) -> None:
    """Allows each rounding of bf16 on the way, of products and of activations, its own error."""
    hidden, mlp = SIZES[size]
    given = tensors(mlp, hidden, dtype)
    experts = native_experts(level, mlp, hidden, dtype, given)
    for tokens in (1, 2, 7, 70):
        x, (chosen, shares) = random(tokens, hidden, seed=tokens, dtype=dtype), routed(tokens, mlp)
        expected = by_hand(x, chosen, shares, given, mlp.activation)
        assert relative_error(experts(x, chosen, shares), expected) < 3 * limit, tokens


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_activations_and_biases(native: ctypes.CDLL, activation: Activation, bias: bool) -> None:
    hidden, mlp = SIZES["odd"]
    mlp = structs.replace(mlp, activation=activation, bias=bias)
    given = tensors(mlp, hidden, torch.float32)
    x, (chosen, shares) = 4 * random(11, hidden, seed=1), routed(11, mlp)
    expected = by_hand(x, chosen, shares, given, activation)
    assert relative_error(native_experts(native, mlp, hidden, torch.float32, given)(x, chosen, shares), expected) < 1e-4
    reference = ReferenceLinears(torch.device("cpu"), torch.float32).experts(mlp, hidden, given)
    assert relative_error(reference(x, chosen, shares), expected) < 1e-4


@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["int8 by output", "int4 by 32", "mxfp4", "fp8 by output", "fp8 by 128"])
def test_quantized_weights_are_what_they_stand_for(
    native: ctypes.CDLL, kind: str, dtype: torch.dtype, limit: float
) -> None:
    """Allows for rows that products take in int8 with bf16, where what is rounded before may change a code by one.

    With fp8, products take rows as they are.
    """
    hidden, mlp = SIZES["odd"]

    def weight(outputs: int, inputs: int, seed: int) -> Quantized:
        return quantized_weight(outputs, inputs, seed=seed, **KINDS[kind])

    quantized = [
        ExpertTensors(
            (weight(mlp.intermediate, hidden, seed), weight(mlp.intermediate, hidden, seed + 1)),
            weight(hidden, mlp.intermediate, seed + 2),
        )
        for seed in range(0, 3 * mlp.experts, 3)
    ]
    stand = [ExpertTensors(tuple(map(dequantized, e.gate_up)), dequantized(e.down)) for e in quantized]
    x, (chosen, shares) = random(33, hidden, seed=1, dtype=dtype), routed(33, mlp)
    experts = NativeLinears(native, dtype).experts(mlp, hidden, quantized)
    units = (16, 32) if kind == "mxfp4" else (32,)
    exact = dtype == torch.float32 or kind.startswith("fp8")
    taken = [Tensor.double] if exact else [partial(in_int8, unit=unit) for unit in units]
    expected = [by_hand(x, chosen, shares, stand, mlp.activation, each) for each in taken]
    assert min(relative_error(experts(x, chosen, shares), each) for each in expected) < 3 * limit


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("size", ["odd", "deep"])
def test_a_rows_bits_depend_on_that_row_only(native: ctypes.CDLL, size: str, count: int) -> None:
    hidden, mlp = SIZES[size]
    experts = native_experts(native, mlp, hidden, torch.float32, tensors(mlp, hidden, torch.float32))
    x, (chosen, shares) = random(257, hidden, seed=1), routed(257, mlp)
    alone = torch.cat([experts(*(each[row : row + 1] for each in (x, chosen, shares))) for row in range(len(x))])
    torch.set_num_threads(count)
    for rows in (2, 5, 17, 64, 257):
        for begin in range(0, len(x) - rows + 1, max(1, rows // 2)):
            found = experts(*(each[begin : begin + rows] for each in (x, chosen, shares)))
            assert torch.equal(found, alone[begin : begin + rows]), (begin, rows)


@pytest.mark.parametrize("tokens", [1, 3, 200])
def test_all_tokens_may_use_the_same_experts(native: ctypes.CDLL, tokens: int) -> None:
    hidden, mlp = SIZES["odd"]
    given = tensors(mlp, hidden, torch.float32)
    experts = native_experts(native, mlp, hidden, torch.float32, given)
    x, shares = random(tokens, hidden, seed=1), routed(tokens, mlp)[1]
    chosen = torch.tensor([[6, 0, 3]], dtype=torch.int32).expand(tokens, -1).contiguous()
    assert relative_error(experts(x, chosen, shares), by_hand(x, chosen, shares, given, mlp.activation)) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_what_is_not_finite_stays_in_its_row(native: ctypes.CDLL, dtype: torch.dtype) -> None:
    """Whether it is what goes in, or what an expert's output is multiplied by."""
    hidden, mlp = SIZES["odd"]
    experts = native_experts(native, mlp, hidden, dtype, tensors(mlp, hidden, dtype))
    x, (chosen, shares) = random(9, hidden, seed=1, dtype=dtype), routed(9, mlp)
    clean = experts(x, chosen, shares)
    x[2, hidden - 1], shares[5, 1] = math.nan, math.inf
    found = experts(x, chosen, shares)
    assert found[2].isnan().all() and not found[5].isfinite().any()
    left = [0, 1, 3, 4, 6, 7, 8]
    assert torch.equal(found[left], clean[left])


def test_the_operator_has_room_for_so_many_experts(native: ctypes.CDLL) -> None:
    mlp = ExpertsMLP(experts=MAX_EXPERTS, used=2, intermediate=2)
    given = tensors(mlp, 3, torch.float32)
    x, (chosen, shares) = random(5, 3, seed=1), routed(5, mlp)
    chosen[4, 1] = MAX_EXPERTS - 1
    found = native_experts(native, mlp, 3, torch.float32, given)(x, chosen, shares)
    assert relative_error(found, by_hand(x, chosen, shares, given, mlp.activation)) < 1e-4


@pytest.mark.parametrize("gate", [False, True], ids=["added", "weighed"])
@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
def test_with_its_router_and_a_shared_expert(native: ctypes.CDLL, dtype: torch.dtype, limit: float, gate: bool) -> None:
    """The router has a bias, corrects and has groups; the shared expert is wider than the others."""
    hidden, width = 65, 70
    mlp = ExpertsMLP(
        experts=6, used=2, intermediate=33, scores="sigmoid", correction=True, groups=3, groups_used=2, shared=width
    )
    given = tensors(mlp, hidden, dtype)
    (shared,) = tensors(ExpertsMLP(experts=1, used=1, intermediate=width), hidden, dtype)
    make = NativeLinears(native, dtype)
    bias, shared_gate = random(mlp.experts, seed=2), random(1, hidden, seed=4) / 8
    weights = ExpertsWeights(
        router=random(mlp.experts, hidden, seed=1) / 8,
        router_bias=bias,
        correction=random(mlp.experts, seed=3) / 10,
        experts=make.experts(mlp, hidden, given),
        shared=DenseWeights(make.fused(LinearWeights(shared.gate_up)), make.fused(LinearWeights([shared.down]))),
        shared_gate=shared_gate if gate else None,
    )
    arguments = layer_arguments(weights)
    for tokens in (1, 5, 40):
        x = random(tokens, hidden, seed=5, dtype=dtype)
        chosen, shares = route((x.double() @ weights.router.double().T + bias).float(), mlp, weights.correction)
        expected = by_hand(x, chosen, shares, given, mlp.activation)
        factor = (x.double() @ shared_gate.double().T).sigmoid() if gate else 1.0
        once = torch.zeros(tokens, 1, dtype=torch.int32), torch.ones(tokens, 1)
        expected += factor * by_hand(x, *once, [shared], mlp.activation)
        room, found = ExpertsBuffers(tokens, [mlp], hidden, dtype), torch.empty_like(x)
        native.baton_experts(arguments, room.arguments, x.data_ptr(), tokens, found.data_ptr())
        assert relative_error(found, expected) < 3 * limit, tokens
