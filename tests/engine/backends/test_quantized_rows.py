"""Many tokens meet weights of 8 bits as bytes on the GPU's path: with fewer launches, and what emulation gives."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contracts.errors import ConfigError
from contracts.kinds import Activations, Quantization
from engine.backends.reference.linear import ReferenceLinears
from engine.backends.triton.elementwise import TritonElementwise
from engine.backends.triton.linear_layers import quantized
from engine.backends.triton.linear_layers.linear import TritonLinears
from engine.backends.triton.linear_layers.quantized import QuantizedLinear
from engine.model.layers.adapted import Adapting, StepAdapters
from engine.model.layers.linear import Linear, LinearWeights
from engine.model.quantization import to_fp8, to_int4, to_int8
from engine.model.quantized import Quantized, Weight, dequantized
from kernels.quantized import rows as kernel
from kernels.quantized.product import MAX_SPLIT_K_ROWS
from kernels.quantized.rows import RowFormat, RowKind
from kernels.tuning import Config
from launcher.devices.gpus import visible_gpus
from tests.engine.specializations import specializations
from tests.engine.test_golden import make_executor
from tests.reference import build_model, make_prompts
from tests.variants import VARIANTS

DEVICE = torch.device("cuda" if visible_gpus() else "cpu")
INPUTS, OUTPUTS, MANY = 64, 48, MAX_SPLIT_K_ROWS + 7
EPS = 1e-5
ALL = 1 << 30


def weight_of(form: RowKind, group: int = INPUTS) -> Quantized:
    """Draws a weight `[OUTPUTS, INPUTS]` that a checkpoint was made for bytes with."""
    make = to_int8 if form == "int8" else to_fp8
    parts = [make(part) for part in torch.randn(OUTPUTS, INPUTS).split(group, 1)]
    scales = torch.cat([part.scales for part in parts], 1)
    return Quantized(form, torch.cat([part.values for part in parts], 1), scales, group, meets_bytes=True)


def rounded(x: Tensor, form: RowFormat) -> Tensor:
    """Returns what rows stand for once they are quantized."""
    return kernel.dequantized(kernel.reference(x, form))


def layer_of(
    weights: Sequence[Weight], activations: Activations = "8bit", adapting: Adapting | None = None
) -> tuple[Linear, TritonElementwise]:
    linears = TritonLinears(DEVICE, torch.float32, activations)
    return linears.fused(
        LinearWeights(weights, torch.ones(OUTPUTS * len(weights), device=DEVICE), adapting)
    ), TritonElementwise({}, EPS)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes tiles of whole layers: the interpreter takes its time for each, whatever its size."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr("kernels.quantized.product.FP32_CONFIG", Config({"TILE": 512, "RUNS": 4}))
        tiles = {"ROWS": 256, "TILE": 512, "RUNS": 4}
        monkeypatch.setattr("kernels.quantized.row_product.CANDIDATE_CONFIGS", [Config(tiles)] * 2)


@pytest.mark.parametrize("form", ["int8", "fp8"])
@pytest.mark.parametrize("group", [INPUTS, 32])
def test_many_rows_are_quantized_and_few_are_not(form: RowKind, group: int) -> None:
    """In fp32: sums of 64 products, each wrong by some units, of magnitudes up to 8 sqrt(64) or so."""
    weight = weight_of(form, group)
    x, numbers = torch.randn(MANY, INPUTS, device=DEVICE), weight.dequantized().to(DEVICE).double()
    layer, _ = layer_of([weight])
    row_form = RowFormat(form, group if group < INPUTS else ALL)
    expected = rounded(x, row_form) @ numbers.t() + 1
    torch.testing.assert_close(layer(x).double(), expected, rtol=0, atol=1e-4)
    exactly = x.double() @ numbers.t() + 1
    assert (expected - exactly).abs().max() > 1e-2, "what is rounded shows"
    torch.testing.assert_close(layer(x[:MAX_SPLIT_K_ROWS])[:9].double(), exactly[:9], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("form", "rows"), [("int8", 5), ("int8", MANY), ("fp8", MANY)])
def test_what_stands_before_a_layer_gives_it_the_same(form: RowKind, rows: int) -> None:
    """Of the same bits, in one launch less; so do layers that adapters may change, in a step without any."""
    weights = [weight_of(form), weight_of(form)]
    hidden, change = (torch.randn(rows, INPUTS, device=DEVICE) for _ in range(2))
    norm, gate_up = torch.randn(INPUTS, device=DEVICE), torch.randn(rows, 2 * INPUTS, device=DEVICE)
    for adapting in (None, Adapting(slots=1, max_rank=4)) if form == "int8" else (None,):
        layer, between = layer_of(weights, adapting=adapting)
        total, normed = between.add_norm(hidden.clone(), change, norm)
        gated = layer(between.gate(gate_up, "silu"))
        with specializations(run=True) as launched:
            found_total, found = between.norm_and_multiply(hidden.clone(), change, norm, layer)
            found_gated = between.gate_and_multiply(gate_up, "silu", layer)
        assert found_total.equal(total) and found.equal(layer(normed)) and found_gated.equal(gated)
        assert any("_norm_rows" in str(each) for each in launched) == (rows == MANY)
        assert any("_gate_rows" in str(each) for each in launched) == (rows == MANY)
        assert not any("_quantize" in str(each) for each in launched)


def test_adapters_meet_rows_that_are_not_rounded() -> None:
    """A step with adapters norms, then multiplies, for both take the same rows."""
    adapting = Adapting(slots=1, max_rank=4)
    layer, between = layer_of([weight_of("int8")], adapting=adapting)
    hidden, norm = torch.randn(MANY, INPUTS, device=DEVICE), torch.randn(INPUTS, device=DEVICE)
    slots = torch.zeros(MANY, dtype=torch.int64)
    slots[3] = 1
    adapting.begin(StepAdapters.of(slots.numpy(), slots.numpy()[:0].astype("int64")))
    with specializations(run=True) as launched:
        between.norm_and_multiply(hidden, None, norm, layer)
    assert any("_quantize" in str(each) for each in launched)


@pytest.mark.parametrize(
    ("activations", "dtype", "made_for_it", "expected"),
    [
        ("auto", torch.float16, True, True),
        ("auto", torch.float16, False, False),
        ("auto", torch.float32, True, False),
        ("8bit", torch.float32, False, True),
        ("16bit", torch.float16, True, False),
    ],
)
def test_who_decides(activations: Activations, dtype: torch.dtype, made_for_it: bool, expected: bool) -> None:
    weight = replace(weight_of("int8"), meets_bytes=made_for_it)
    layer = TritonLinears(DEVICE, dtype, activations).fused(LinearWeights([weight]))
    assert isinstance(layer, QuantizedLinear)
    assert (layer.form_of(MANY) is not None) == expected and layer.form_of(MAX_SPLIT_K_ROWS) is None


def test_the_log_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    quantized._logged.clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            layer_of([weight_of("fp8")])
        layer_of([to_int4(torch.randn(OUTPUTS, INPUTS))])
    assert [record.getMessage() for record in caplog.records] == [
        "more than 128 tokens at once meet fp8 weights as fp8, with scales of their own",
        "more than 128 tokens at once meet int4 weights as they are",
    ]


class Emulated:
    """Rounds many rows as the kernels do, and multiplies by the numbers that weights stand for."""

    def __init__(self, weight: Tensor, bias: Tensor | None, form: RowKind) -> None:
        self._weight, self._bias, self._form = weight, bias, RowFormat(form, ALL)

    def __call__(self, x: Tensor) -> Tensor:
        x = rounded(x, self._form).float() if len(x) > MAX_SPLIT_K_ROWS else x
        return torch.nn.functional.linear(x, self._weight, self._bias)

    def held(self) -> list[Tensor]:
        return [self._weight]


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
def test_logits_are_those_of_emulation(
    quantization: Quantization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulation differs in the order of fp32 sums, by some 2^-20 of a value. So one ends on the other side of a
    rounding's middle with a chance of about 2^-20 over the distance of two, 2^-6: once in 16,000 values. That moves its
    row by as much as rounding does, and rows behind it that attend to it by so little that few of theirs follow. A row
    has some 500 values that are rounded: one in 30 is moved. A fifth may be; the others are equal to 2^-12 of what
    rounding costs, by the sums' errors alone."""
    config = VARIANTS["llama"]()
    config.num_hidden_layers = 1
    directory = build_model(tmp_path / "model", config)
    (text,) = make_prompts([MANY], config.vocab_size)
    settings: dict[str, object] = {"quantization": quantization, "device": DEVICE.type, "decode_graphs": "off"}
    settings |= {"max_batch_tokens": 8, "max_sequences": 2}  # of a start: a step of all tokens is ours

    def logits(backend: str, activations: Activations) -> Tensor:
        given = {f"{DEVICE.type}_backend": backend, "activations": activations}
        return make_executor(directory, **settings, **given).logits(text).double()

    exact, ours = logits("torch", "auto"), logits("triton", "8bit")

    def emulated(self: ReferenceLinears, weights: LinearWeights) -> Linear:
        numbers = torch.cat([dequantized(part) for part in weights.parts]).to(DEVICE)
        return Emulated(numbers, weights.bias, "int8" if quantization == "int8" else "fp8")

    monkeypatch.setattr(ReferenceLinears, "fused", emulated)
    expected = logits("torch", "auto")
    cost = (exact - expected).norm(dim=1)
    moved = (ours - expected).norm(dim=1) > cost * 2**-12
    assert (cost > 1e-3 * exact.norm(dim=1)).all()
    assert moved.sum() <= len(text) / 5


def test_other_backends_refuse_it_by_name(tmp_path: Path) -> None:
    directory = build_model(tmp_path / "model", VARIANTS["llama"]())
    for backend, activations in (("torch", "8bit"), ("native", "16bit")):
        words = f"--activations: '{activations}': only Triton's kernels, on a GPU, quantize tokens or not"
        with pytest.raises(ConfigError, match=words):
            make_executor(directory, device="cpu", cpu_backend=backend, activations=activations)


@pytest.mark.interpreted
@pytest.mark.parametrize("form", ["int8", "fp8"])
def test_steps_launch_what_the_start_has_compiled(form: RowKind) -> None:
    """Of products; norms and gates are compiled by the steps that a start profiles."""
    linears = TritonLinears(torch.device("cpu"), torch.float16)
    layers = [linears.fused(LinearWeights([weight_of(form, group)])) for group in (INPUTS, 32)]
    with specializations(run=False) as found:
        linears.warm_up()
        at_start = set(found)
        for layer in layers:
            for rows in (1, 16, 100, 128, 129, 160, 500, 1024, 2001):
                layer(torch.zeros(rows, INPUTS, dtype=torch.float16))
        assert sorted(found - at_start) == []
