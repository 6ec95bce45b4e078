"""transformers loads a model's weights: all of them, in the format that was asked for, and nothing else."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.errors import ModelError, OptionError
from engine.start.load import load_engine
from engine.wrapped.linears import BackendLinear
from engine.wrapped.model import WrappedModel
from infra.config.engine import EngineConfig
from tests.engine.drive import run, start
from tests.engine.test_golden import make_engine, make_executor
from tests.engine.wrapped.models import WRAPPED
from tests.reference import build_model, golden, make_prompts
from tests.variants import VARIANTS


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build_model(tmp_path / "model", WRAPPED["phi"]())


def test_a_tensor_that_lacks_is_extra_or_misshapen_is_named(model: Path) -> None:
    path = model / "model.safetensors"
    weights = load_file(path)
    name = "model.layers.1.mlp.fc1.weight"
    for changed, words in (
        ({key: value for key, value in weights.items() if key != name}, f"the weights lack {name}"),
        (weights | {"model.layers.1.mlp.fc9.weight": torch.ones(2)}, "no place for the weight model.layers.1.mlp.fc9"),
        (weights | {name: weights[name][:-1].clone()}, name),
    ):
        save_file(changed, path, {"format": "pt"})
        with pytest.raises(ModelError, match=words):
            make_engine(model)


def test_pickled_weights_are_never_loaded(model: Path) -> None:
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="pickle"):
        make_engine(model)


def test_the_log_says_whose_code_computes_and_why(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make_engine(model)
    assert "transformers' own forward pass, over our KV pool: PhiForCausalLM is none of ours" in caplog.text
    caplog.clear()
    ours = build_model(tmp_path / "ours", VARIANTS["llama"]())
    make_engine(ours)
    assert "transformers" not in caplog.text
    make_engine(ours, model_impl="transformers")
    assert "--model-impl transformers asks for it" in caplog.text
    with pytest.raises(ModelError, match="PhiForCausalLM is not supported"):
        make_engine(model, model_impl="native")


@pytest.mark.parametrize(
    ("variant", "option", "value"),
    [
        ("llama", "hidden_act", "relu"),
        ("olmoe", "clip_qkv", 0.5),
        ("deepseek-v2", "mlp_bias", True),
        ("deepseek-v2-lite", "attention_bias", True),
        ("qwen3", "rope_parameters", {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}),
    ],
)
def test_what_a_family_of_ours_lacks_is_computed_by_transformers_own_code(
    variant: str, option: str, value: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = VARIANTS[variant]()
    setattr(config, option, value)
    model = build_model(tmp_path / "model", config)
    prompts = make_prompts([5, 33], config.vocab_size)
    expected, executor = golden(model, prompts, 8), make_executor(model)
    found = run(executor, start(executor, prompts, 8), 8, chunk=13)
    assert found == [each.tokens for each in expected]
    with pytest.raises(OptionError) as lacks:
        make_engine(model, model_impl="native")
    assert f"transformers' own forward pass, over our KV pool: {lacks.value}" in caplog.text


def test_an_option_that_nobody_has_is_refused_in_both_words(tmp_path: Path) -> None:
    model = build_model(tmp_path / "model", VARIANTS["llama"]())
    raw = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(raw | {"hidden_act": "rely"}))
    with pytest.raises(ModelError, match=r"^model: activation rely is not .*; nor does transformers' own code .*rely"):
        make_engine(model)


def test_loading_reports_its_progress(model: Path) -> None:
    seen: dict[str, list[float]] = {}
    config = EngineConfig(model=str(model), device="cpu", dtype="fp32", kv_memory=1 << 20)
    load_engine(config, lambda stage, percent: seen.setdefault(stage, []).append(percent))
    for stage in ("loading weights", "packing weights"):
        assert seen[stage] == sorted(seen[stage]) and len(seen[stage]) > 10 and seen[stage][-1] == 100.0
    assert "comparing with transformers" in seen


@pytest.mark.parametrize("name", ["gpt2", "phi", "minicpm3", "longcat_flash"])
def test_every_plain_product_is_the_backends(name: str, tmp_path: Path) -> None:
    """Replaces GPT-2's products, called Conv1D, but not the router by whose weight LongCat multiplies itself."""
    engine = make_engine(build_model(tmp_path / "model", WRAPPED[name]()), model_impl="transformers")
    assert isinstance(engine.model, WrappedModel)
    own = engine.model._own
    left = [each for each, module in own.named_modules() if type(module).__name__ in ("Linear", "Conv1D")]
    assert left == (["model.layers.0.mlp.router.classifier"] if name == "longcat_flash" else [])
    assert sum(isinstance(module, BackendLinear) for module in own.modules()) > 3 * 4


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4", "fp8"])
def test_other_formats_hold_what_they_should(dtype: str, quantization: str, backend: str, model: Path) -> None:
    """A start compares what they compute with transformers in the same format, by the numbers of the same weights."""
    plain = make_engine(model)
    engine = make_engine(model, dtype=dtype, quantization=quantization, cpu_backend=backend)
    share = engine.memory.weights_bytes / plain.memory.weights_bytes
    held = quantization in engine.backend.linears.forms
    assert share < (0.5 if held else 0.6 if dtype == "bf16" else 1.01 + (quantization != "none"))
    assert engine.forms == {"none": (), "int4": ("int4", "int8")}.get(quantization, (quantization,))
