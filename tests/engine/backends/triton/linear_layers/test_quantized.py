"""Quantized weights on the GPU's path: they stay packed, and give what the numbers that they stand for give."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contracts.kinds import Quantization
from engine.backends.reference.linear import ReferenceLinears
from engine.backends.triton.linear_layers import quantized
from engine.backends.triton.linear_layers.adapted import TritonAdapted
from engine.backends.triton.linear_layers.adapter_rows import recorded
from engine.backends.triton.linear_layers.linear import TritonLinears
from engine.backends.triton.linear_layers.quantized import QuantizedLinear, SideBySide
from engine.model.layers.adapted import Adapting, Expansion, LowRank
from engine.model.layers.linear import LinearWeights
from engine.model.quantization import to_fp8, to_int4, to_int8
from engine.model.quantized import Quantized, Weight
from kernels.tuning import Config
from launcher.devices.gpus import visible_gpus
from tests.engine.drive import run, start
from tests.engine.specializations import specializations
from tests.engine.test_golden import make_executor
from tests.reference import build_model, make_prompts
from tests.variants import VARIANTS

DEVICE = "cuda" if visible_gpus() else "cpu"
NEW_TOKENS = 3
LAYER_INPUTS = 64
WIDE = Config({"TILE": 512, "RUNS": 4})
"""Tiles of whole layers: the interpreter takes its time for each, whatever its size."""


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr("kernels.quantized.product.FP32_CONFIG", WIDE)


@pytest.mark.parametrize("quantization", ["int4", "int8", "fp8"])
def test_tokens_equal_those_of_the_dequantized_model(quantization: Quantization, tmp_path: Path) -> None:
    """PyTorch's operators multiply by the numbers; chunks beside decodes, and recorded steps."""
    config = VARIANTS["llama-biases"]()
    config.num_hidden_layers = 1
    directory = build_model(tmp_path / "model", config)
    found = []
    for backend in ("torch", "triton"):
        settings: dict[str, object] = {f"{DEVICE}_backend": backend, "max_sequences": 2, "max_batch_tokens": 64}
        executor = make_executor(directory, device=DEVICE, quantization=quantization, **settings)
        running = start(executor, make_prompts([2, 19], config.vocab_size), NEW_TOKENS)
        found.append(run(executor, running, NEW_TOKENS, chunk=16, ahead=True))
    assert found[0] == found[1]


def both(weights: list[Weight], bias: Tensor | None = None, rows: int = 3) -> tuple[Tensor, Tensor, object]:
    """Returns what the kernels and what PyTorch's operators give, and the layer of the kernels."""
    device, inputs = torch.device(DEVICE), weights[0].shape[1]
    x = torch.randn(rows, inputs, device=device)
    ours = TritonLinears(device, torch.float32).fused(LinearWeights(weights, bias))
    theirs = ReferenceLinears(device, torch.float32).fused(LinearWeights(weights, bias))
    return ours(x), theirs(x), ours


def grouped(weight: Tensor, group: int) -> Quantized:
    """Makes an int8 weight whose groups have so many inputs."""
    parts = [to_int8(part) for part in weight.split(group, 1)]
    return Quantized(
        "int8", torch.cat([part.values for part in parts], 1), torch.cat([part.scales for part in parts], 1), group
    )


def test_parts_of_one_kind_are_one_launch() -> None:
    weights: list[Weight] = [to_int4(torch.randn(outputs, LAYER_INPUTS)) for outputs in (7, 4, 5)]
    found, expected, layer = both(weights, torch.randn(16, device=DEVICE))
    assert isinstance(layer, QuantizedLinear)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_parts_of_several_kinds_lie_side_by_side() -> None:
    order = torch.randperm(LAYER_INPUTS)
    weights: list[Weight] = [
        to_int4(torch.randn(7, LAYER_INPUTS)),
        to_int4(torch.randn(2, LAYER_INPUTS)),
        replace(to_int4(torch.randn(4, LAYER_INPUTS)), order=order),
        grouped(torch.randn(5, LAYER_INPUTS), 16),
        grouped(torch.randn(3, LAYER_INPUTS), 8),  # no kernel takes groups of 8
        torch.randn(6, LAYER_INPUTS),
        to_fp8(torch.randn(3, LAYER_INPUTS)),
    ]
    found, expected, layer = both(weights, torch.randn(30, device=DEVICE))
    assert isinstance(layer, SideBySide)
    names = [type(part).__name__ for part in layer._parts]
    assert names == ["QuantizedLinear", "QuantizedLinear", "QuantizedLinear", "DequantizedLinear", "QuantizedLinear"]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_inputs_are_gathered_in_the_order_of_a_checkpoint() -> None:
    order = torch.randperm(LAYER_INPUTS)
    weights: list[Weight] = [replace(to_int4(torch.randn(outputs, LAYER_INPUTS)), order=order) for outputs in (4, 5)]
    found, expected, layer = both(weights)
    assert isinstance(layer, QuantizedLinear), "both have the same order"
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_many_rows_are_multiplied_by_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "MIN_DEQUANTIZED_ROWS", 4)
    monkeypatch.setattr(quantized, "product", None)
    weights: list[Weight] = [to_int4(torch.randn(7, LAYER_INPUTS)), to_fp8(torch.randn(5, LAYER_INPUTS))]
    found, expected, _ = both(weights, torch.randn(12, device=DEVICE), rows=4)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_what_no_kernel_takes_is_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    quantized._logged.clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            found, expected, _ = both([grouped(torch.randn(4, LAYER_INPUTS), 24)])
            assert found.equal(expected)
    why = "groups of int8 weights have a multiple of 16 inputs in the kernels, not 24"
    told = f"weights are dequantized in memory: {why}"
    assert [record.getMessage() for record in caplog.records] == [told]


def test_adapters_change_quantized_layers() -> None:
    device = torch.device(DEVICE)
    adapting = Adapting(slots=1, max_rank=4)
    layer = TritonLinears(device, torch.float32).fused(
        LinearWeights([to_int4(torch.randn(8, LAYER_INPUTS))], None, adapting)
    )
    x = torch.randn(3, LAYER_INPUTS, device=device)
    plain = layer(x)
    a, b = torch.randn(4, LAYER_INPUTS, device=device), torch.randn(4, 8, device=device)
    assert isinstance(layer, TritonAdapted)
    layer.put(1, LowRank(a, (Expansion(0, 0, b),)))
    adapting.begin(recorded(torch.tensor([0, 1, 0], device=device)))
    torch.testing.assert_close(layer(x)[1], plain[1] + x[1] @ a.t() @ b, rtol=1e-4, atol=1e-4)
    assert layer(x)[[0, 2]].equal(plain[[0, 2]])


@pytest.mark.interpreted
def test_steps_launch_what_the_start_has_compiled() -> None:
    """Compares for any number of rows, and whether it is divisible by 16."""
    linears = TritonLinears(torch.device("cpu"), torch.float16)
    layers = [
        linears.fused(LinearWeights([to_int4(torch.randn(24, LAYER_INPUTS)), to_int8(torch.randn(8, LAYER_INPUTS))]))
    ]
    layers += [
        linears.fused(LinearWeights([make(torch.randn(48, 1024))], torch.randn(48).half()))
        for make in (to_int4, to_fp8)
    ]
    with specializations(run=False) as found:
        linears.warm_up()
        at_start = set(found)
        for layer, inputs in zip(layers, (LAYER_INPUTS, 1024, 1024), strict=True):
            for rows in (1, 15, 16, 17, 32, 33, 64, 100, 128, 129, 500, 1024, 2001):
                layer(torch.zeros(rows, inputs, dtype=torch.float16))
        assert len(at_start) > 10 and sorted(found - at_start) == []
