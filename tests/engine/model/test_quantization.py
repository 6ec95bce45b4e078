"""int8 weights: how far they are from the exact ones, and a model of them beside its dequantised copy."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.errors import ConfigError
from demo_model import stories
from engine.backends.native.library import load
from engine.backends.native.linear import NativeLinear
from engine.model.quantization import LARGEST, to_int8
from tests.engine.backends.native.measures import random
from tests.engine.drive import run, start
from tests.engine.test_golden import make_engine, make_executor
from tests.reference import build_model, golden, make_prompts
from tests.variants import VARIANTS

DEMO = Path(stories.__file__).parent / "weights"


def test_a_weight_moves_by_half_a_step_at_most() -> None:
    """And by fp32's rounding of the quotient and the product, which is 2^-23 of the largest weight of its row."""
    weight = random(63, 257, seed=1) * torch.logspace(-30, 30, 63)[:, None]
    weight[5] = 0
    found = to_int8(weight)
    values, scales = found.values, found.scales.flatten()
    assert values.dtype == torch.int8 and values.abs().amax() == LARGEST
    moved = (found.dequantized().double() - weight.double()).abs().amax(1)
    assert (moved <= scales.double() * (0.5 + LARGEST * 2.0**-23)).all()
    assert not values[5].any() and scales[5] == 0


def test_the_largest_weight_of_an_output_stays() -> None:
    found = to_int8(torch.tensor([[1.0, -3.0], [0.25, 0.125]]))
    assert found.values.tolist() == [[42, -127], [127, 64]]
    assert torch.equal(found.scales, torch.tensor([[3.0], [0.25]]) / 127)


def test_what_is_not_finite_is_not_hidden() -> None:
    weight = random(3, 8, seed=1)
    weight[0, 3], weight[2, 0] = math.nan, math.inf
    found = to_int8(weight)
    y = NativeLinear(load(), found.values, None, found.scales.flatten(), torch.float32)(torch.ones(1, 8))
    assert y.isfinite().tolist() == [[False, True, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_products_of_a_trained_models_weights_stay_within_the_steps_bound(dtype: torch.dtype) -> None:
    """|x q s - x w| <= sum |x| times half the output's step, for every linear layer of the demo model. The result's own
    rounding comes on top: half a unit of `dtype` in it, and of fp32 in each of at most 2 inputs sums."""
    native = load()
    for name, tensor in load_file(DEMO / "model.safetensors").items():
        if tensor.ndim != 2:
            continue
        weight = tensor.float()
        stored = to_int8(weight)
        scales = stored.scales.flatten()
        x = random(33, weight.shape[1], seed=len(name), dtype=dtype)
        exact = x.double() @ weight.double().T
        found = NativeLinear(native, stored.values, None, scales, dtype)(x).double()
        size = x.double().abs().sum(1, keepdim=True)
        largest = weight.double().abs().amax(1) * size
        rounding = exact.abs() * torch.finfo(dtype).eps + largest * 2 * weight.shape[1] * 2.0**-24
        bound = size * scales.double() / 2 * (1 + torch.finfo(dtype).eps) + rounding
        assert ((found - exact).abs() <= bound).all(), name


@pytest.mark.parametrize("variant", ["llama", "qwen3"])
def test_tokens_are_those_of_the_dequantised_model(variant: str, tmp_path: Path) -> None:
    """Transformers, in fp32, on a checkpoint whose linear layers hold what the int8 weights stand for."""
    config = VARIANTS[variant]()
    directory = build_model(tmp_path / "model", config)
    twin = build_model(tmp_path / "twin", config)
    tensors = load_file(twin / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("proj.weight") or name == "lm_head.weight":
            tensors[name] = to_int8(tensor).dequantized()
    save_file(tensors, twin / "model.safetensors", {"format": "pt"})
    expected = golden(twin, make_prompts([1, 7, 16, 33, 64], config.vocab_size), 8)
    executor = make_executor(directory, quantization="int8")
    running = start(executor, [each.prompt for each in expected], 8)
    assert run(executor, running, 8, chunk=13) == [each.tokens for each in expected]


def test_a_worker_with_int8_weights_is_another_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """KV of the one does not fit the other's weights, so their fingerprints differ; and the log says what is held."""
    directory = build_model(tmp_path / "model", VARIANTS["llama"]())
    caplog.set_level("INFO")
    plain, small = (make_engine(directory, quantization=each) for each in ("none", "int8"))
    assert plain.pool.spec.fingerprint() != small.pool.spec.fingerprint()
    assert small.memory.weights_bytes < plain.memory.weights_bytes / 2
    said = [record.getMessage() for record in caplog.records if "KV pool" in record.getMessage()]
    assert ["in fp32, int8 weights, native operators" in line for line in said] == [False, True]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"cpu_backend": "torch"}, "only native operators on a CPU have it, not torch's operators"),
        ({"dtype": "fp16"}, "it needs the native operators: fp32 and bf16 are supported, not fp16"),
    ],
)
def test_who_cannot_have_int8_weights_is_told(settings: dict[str, str], why: str, tmp_path: Path) -> None:
    directory = build_model(tmp_path / "model", VARIANTS["llama"]())
    with pytest.raises(ConfigError, match=f"^quantization: 'int8': {why}$"):
        make_engine(directory, quantization="int8", **settings)
