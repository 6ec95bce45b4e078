"""Weights that are quantized at load: how far they move, and models of them beside their dequantized copies."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.kinds import Quantization
from demo_model import split
from engine.backends.native.library import load
from engine.backends.native.linear_layers.linear import NativeLinear
from engine.model.quantization import (
    INT4_GROUP_INPUTS,
    INT4_MAX,
    INT4_MIN,
    LARGEST_FP8,
    LARGEST_INT8,
    fitting_scales,
    plain_scales,
    quantized,
    to_fp8,
    to_int4,
    to_int8,
)
from engine.model.quantized import Quantized
from tests.engine.backends.native.measures import random
from tests.engine.backends.native.quantized_weights import in_int8
from tests.engine.drive import answers
from tests.engine.test_golden import BACKENDS, make_engine, make_executor
from tests.engine.twins import dequantized_twin
from tests.reference import build_model, golden, make_prompts
from tests.variants import VARIANTS

DEMO = Path(split.__file__).parent / "weights"
FORMS: tuple[Quantization, ...] = ("int8", "int4", "fp8")
SIZES = torch.logspace(-30, 30, 63)[:, None]
"""Of the largest weights of outputs, which are squared in no format."""
ROUNDED = 2.0**-22
"""What fp32 adds to a step's half by rounding quotient and product, as a part of the largest weight."""


def exact(weight: Tensor, form: Quantization) -> Quantized:
    found = quantized(weight, form)
    assert isinstance(found, Quantized)
    return found


def test_an_int8_weight_moves_by_half_a_step_at_most() -> None:
    weight = random(63, 257, seed=1) * SIZES
    weight[5] = 0
    found = to_int8(weight)
    scales = found.scales.flatten().double()
    assert found.values.dtype == torch.int8 and found.values.abs().amax() == LARGEST_INT8
    moved = (found.dequantized().double() - weight.double()).abs().amax(1)
    assert (moved <= scales * (0.5 + LARGEST_INT8 * ROUNDED)).all()
    assert not found.values[5].any() and scales[5] == 0


def test_an_fp8_weight_moves_by_half_a_step_at_most() -> None:
    """A step is an eighth of the power of two below the number, and 2 ** -9 of the scale at the least."""
    weight = random(63, 257, seed=1) * SIZES
    weight[5] = 0
    found = to_fp8(weight)
    scales, values = found.scales.double(), found.values.double()
    largest = weight.double().abs().amax(1, keepdim=True)
    assert (scales >= largest / LARGEST_FP8 * (1 - ROUNDED)).all(), "nothing is cut off"
    assert (scales <= largest / LARGEST_FP8 * 2).all(), "and not twice as much as is needed is kept free"
    moved = (found.dequantized().double() - weight.double()).abs()
    half = (values.abs() / 16).clamp(min=2.0**-10)
    assert (moved <= scales * half + largest * ROUNDED).all()
    assert not values[5].any() and scales[5] == 0


def test_an_int4_weight_moves_by_half_a_step_at_most_or_is_cut_off() -> None:
    weight = random(63, 257, seed=1) * SIZES  # groups of 32, and one that has a single weight
    weight[5] = 0
    found = to_int4(weight)
    assert found.group == INT4_GROUP_INPUTS and found.scales.shape == (63, 9)
    assert found.offsets is not None and torch.equal(found.offsets, found.scales * INT4_MIN)
    assert torch.equal(found.scales.bfloat16().float(), found.scales), "16 bits hold a scale"
    scales = found.scales.repeat_interleave(INT4_GROUP_INPUTS, 1)[:, :257].double()
    numbers = weight.double() / torch.where(scales == 0, 1, scales)
    cut = numbers.clamp(INT4_MIN, INT4_MAX) * scales
    moved = (found.dequantized().double() - cut).abs()
    assert (moved <= scales.abs() * (0.5 + 8 * ROUNDED)).all()
    assert not found.dequantized()[5].any()
    assert (found.dequantized()[:, -1].double() - weight[:, -1].double()).abs().le(weight[:, -1].abs() * 2.0**-8).all()


@given(
    st.lists(st.floats(-1, 1, width=32), min_size=INT4_GROUP_INPUTS, max_size=INT4_GROUP_INPUTS),
    st.integers(-35, 35).map(lambda power: 10.0**power),
)
def test_a_scale_that_is_searched_is_never_worse_than_the_plain_one(numbers: list[float], size: float) -> None:
    columns = (torch.tensor(numbers, dtype=torch.float64) * size).float()[:, None]

    def error(scales: Tensor) -> float:
        scale = scales.double()
        codes = (columns.double() / torch.where(scale == 0, 1, scale)).round().clamp(INT4_MIN, INT4_MAX)
        return float((codes * scale - columns).square().sum())

    plain = error(plain_scales(columns))
    assert error(fitting_scales(columns)) <= plain * (1 + 1e-5) + float(columns.double().square().sum()) * ROUNDED


def test_the_search_lowers_the_error_of_trained_weights() -> None:
    off, plain = 0.0, 0.0
    for name, tensor in load_file(DEMO / "model.safetensors").items():
        if tensor.ndim == 2:
            weight = tensor.float()
            columns = weight.view(-1, INT4_GROUP_INPUTS).T
            scale = plain_scales(columns)
            codes = (columns / scale).round().clamp(INT4_MIN, INT4_MAX)
            plain += float((codes * scale - columns).square().sum())
            off += float((to_int4(weight).dequantized() - weight).square().sum())
            assert to_fp8(weight).dequantized().sub_(weight).norm() < 0.026 * weight.norm(), name
    assert off < 0.95 * plain


def test_layers_larger_than_what_is_quantized_at_once() -> None:
    """Shows that, whatever the pieces, each output is quantized as it would be alone."""
    weight = random(70, 4099, seed=3, dtype=torch.bfloat16)  # of 64 and 6 outputs
    for form in FORMS:
        whole, last = exact(weight, form), exact(weight[-7:], form)
        assert torch.equal(whole.values[-7:].float(), last.values.float())
        assert torch.equal(whole.scales[-7:], last.scales)


def test_the_largest_weight_of_an_output_stays_in_int8() -> None:
    found = to_int8(torch.tensor([[1.0, -3.0], [0.25, 0.125]]))
    assert found.values.tolist() == [[42, -127], [127, 64]]
    assert torch.equal(found.scales, torch.tensor([[3.0], [0.25]]) / 127)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_hidden(strange: float, form: Quantization) -> None:
    weight = random(3, 64, seed=1)
    weight[0, 3], weight[2, 60] = strange, strange
    y = exact(weight, form).dequantized().sum(1)
    assert y.isfinite().tolist() == [False, True, False]


def test_the_native_operators_do_not_hide_it_either() -> None:
    weight = random(3, 8, seed=1)
    weight[0, 3], weight[2, 0] = math.nan, math.inf
    found = to_int8(weight)
    y = NativeLinear(load(), found, None, torch.float32)(torch.ones(1, 8))
    assert y.isfinite().tolist() == [[False, True, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_products_of_a_trained_models_weights_stay_within_the_steps_bound(dtype: torch.dtype) -> None:
    """|x q s - x w| <= sum |x| times half the output's step, for every linear layer of the demo model. The result's own
    rounding comes on top: half a unit of `dtype` in it, and of fp32 in each of at most 2 inputs sums. In bf16 so does
    what x moves by in int8."""
    native = load()
    for name, tensor in load_file(DEMO / "model.safetensors").items():
        if tensor.ndim != 2:
            continue
        weight = tensor.float()
        stored = to_int8(weight)
        scales = stored.scales.flatten()
        x = random(33, weight.shape[1], seed=len(name), dtype=dtype)
        exact = x.double() @ weight.double().T
        found = NativeLinear(native, stored, None, dtype)(x).double()
        size = x.double().abs().sum(1, keepdim=True)
        largest = weight.double().abs().amax(1) * size
        rounding = exact.abs() * torch.finfo(dtype).eps + largest * 2 * weight.shape[1] * 2.0**-24
        bound = size * scales.double() / 2 * (1 + torch.finfo(dtype).eps) + rounding
        if dtype == torch.bfloat16:
            bound += (in_int8(x) - x).abs() @ stored.dequantized().double().abs().T
        assert ((found - exact).abs() <= bound).all(), name


@pytest.mark.parametrize(
    ("variant", "form"),
    [
        ("llama", "int8"),
        ("llama", "int4"),
        ("qwen3", "fp8"),
        ("deepseek-v3", "int4"),
        ("deepseek-v3", "fp8"),
        ("mixtral", "int8"),
        ("mixtral", "int4"),
    ],
)
def test_tokens_are_those_of_the_dequantized_model(variant: str, form: Quantization, tmp_path: Path) -> None:
    """Runs transformers, in fp32, on the dequantized copy; every backend on the numbers themselves."""
    config = VARIANTS[variant]()
    directory = build_model(tmp_path / "model", config)
    twin = dequantized_twin(directory, tmp_path / "twin", form)
    expected = golden(twin, make_prompts([1, 7, 16, 33, 64], config.vocab_size), 8)
    for backend in BACKENDS:
        executor = make_executor(directory, quantization=form, cpu_backend=backend)
        assert answers(executor, expected, chunk=13) == [each.tokens for each in expected], backend


def test_a_worker_with_quantized_weights_is_another_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """KV of the one does not fit the other's weights, so their fingerprints differ; and the log says what is held."""
    directory = build_model(tmp_path / "model", VARIANTS["llama"]())
    caplog.set_level("INFO")
    engines = [make_engine(directory, quantization=each) for each in ("none", *FORMS)]
    assert len({engine.pool.spec.content() for engine in engines}) == len(engines)
    assert engines[1].memory.weights_bytes < engines[0].memory.weights_bytes / 2
    assert [engine.forms for engine in engines] == [(), ("int8",), ("int4", "int8"), ("fp8",)]
    said = [record.getMessage() for record in caplog.records if "KV pool" in record.getMessage()]
    words = ("", ", int8 weights", ", int4 and int8 weights", ", fp8 weights")
    assert [f"in fp32{each}, native operators" in line for each, line in zip(words, said, strict=True)] == [True] * 4


def test_a_backend_that_has_no_operators_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = build_model(tmp_path / "model", VARIANTS["llama"]())
    caplog.set_level("INFO")
    for settings in ({"cpu_backend": "torch"}, {"dtype": "fp16"}):
        caplog.clear()
        engine = make_engine(directory, quantization="int4", **settings)
        (line,) = [record.getMessage() for record in caplog.records if "dequantized" in record.getMessage()]
        dtype = settings.get("dtype", "fp32")
        assert line.startswith(
            f"torch operators do not multiply int4 and int8 weights, which are dequantized to {dtype}"
        )
        assert engine.memory.weights_bytes > engine.parameters * (2 if dtype == "fp16" else 4) * 0.9


@pytest.mark.parametrize("form", FORMS)
def test_a_weight_may_lie_in_memory_the_other_way(form: Quantization) -> None:
    """Takes weights that lie as those of transformers' Conv1D and of packed experts do."""
    weight = random(96, 70, seed=2)
    found, expected = exact(weight.T, form), exact(weight.T.contiguous(), form)
    assert torch.equal(found.dequantized(), expected.dequantized())


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest fp32 tensor that is computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **kwargs or {})
        for each in found if isinstance(found, tuple | list) else (found,):
            if isinstance(each, Tensor) and each.dtype == torch.float32:
                self.bytes = max(self.bytes, each.nbytes)
        return found


@pytest.mark.parametrize("form", FORMS)
def test_no_large_layer_is_copied_to_fp32(form: Quantization) -> None:
    """Counts what it takes to quantize it, and to make numbers of it."""
    weight = torch.zeros(2048, 4096, dtype=torch.bfloat16).normal_(generator=torch.Generator().manual_seed(1))
    target = torch.zeros_like(weight)
    with Largest() as largest:
        exact(weight, form).write(target)
    assert largest.bytes <= 4 << 20 < weight.numel() * 4 / 4
    assert (target - weight).float().norm() < 0.09 * weight.float().norm()
