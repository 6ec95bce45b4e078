"""Models in each format give the tokens, and the logits, that transformers gives for the numbers that they mean."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.errors import ConfigError, ModelError
from engine.backends.native.compiling import build as compiling
from engine.model.formats.registry import format_of
from engine.model.open_checkpoint import open_checkpoint
from engine.plan import PromptRows, StepPlan, Work
from engine.start import sizing
from engine.start.sizing import refuse_large_weights
from infra.config.engine import EngineConfig
from tests.engine.drive import GREEDY, answers
from tests.engine.model.formats.cases import CASES, build
from tests.engine.test_golden import BACKENDS, make_engine, make_executor
from tests.reference import SAFETY_FACTOR, build_model, golden, load_reference, logprobs, make_prompts

NEW_TOKENS = 6
AVX2 = ["-march=x86-64-v3"] if "avx2" in compiling.processor().split() else []
"""Compiled for AVX2 alone. On a processor of another kind (arm) this cannot run: there `-march=native` is all there is,
and every test takes it."""


@torch.inference_mode()
def in_pieces(model: Any, tokens: list[int], size: int) -> Tensor:
    """Returns what `logprobs` does, of a pass over each piece of the text and a cache of those before it."""
    rows, cache = [], None
    for begin in range(0, len(tokens), size):
        output = model(torch.tensor([tokens[begin : begin + size]]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0])
    return torch.cat(rows).double().log_softmax(-1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Makes each model once: its directory and its twin's."""

    @cache
    def make(case: str) -> tuple[Path, Path]:
        return build(case, tmp_path_factory.mktemp("formats"), build_model)

    return make


@pytest.mark.parametrize("case", CASES)
def test_tokens_and_logits_are_those_of_the_numbers(case: str, made: Callable[[str], tuple[Path, Path]]) -> None:
    """Log-probabilities may be `SAFETY` times as far from transformers' as those from its own of a prompt in pieces:
    that is what the order of sums in fp32 costs on these texts, and the numbers are the same."""
    directory, twin = made(case)
    expected = golden(twin, make_prompts([1, 16, 33, 50], 320), NEW_TOKENS)
    reference, prompt = load_reference(twin), make_prompts([48], 320, seed=1)[0]
    whole, pieces = logprobs(reference, prompt), in_pieces(reference, prompt, 7)
    bound = SAFETY_FACTOR * float((whole - pieces).abs().max())
    assert 0 < bound < 1e-3, "and still far below what a wrong scale would do"
    scores = whole[torch.arange(47), torch.tensor(prompt[1:])]
    for backend in BACKENDS:
        executor = make_executor(directory, cpu_backend=backend)
        assert answers(executor, expected, chunk=13) == [each.tokens for each in expected], backend
        tables = ([1, 2, 3],) * len(executor.engine.pool.counts)
        executor.launch(StepPlan(0, [Work(1, 0, prompt, tables, GREEDY, prompt_rows=PromptRows(0, prompt[1:], 0))]))
        found = torch.tensor([told.logprob for told in executor.collect().prompt_scores[0]], dtype=torch.float64)
        assert (found - scores).abs().max() <= bound, backend


@pytest.mark.parametrize("target", AVX2)
def test_operators_for_avx2_give_the_tokens(
    target: str, made: Callable[[str], tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computes with operators as they are compiled for laptops, chosen as a user would: by the environment."""
    monkeypatch.setenv(compiling.TARGET_VARIABLE, target)
    usual = compiling.build(compiling.NATIVE_TARGET)
    assert compiling.build() != usual
    for case in ("compressed-tensors", "gptq, 8 bits, experts", "fp8, blocks, latent"):
        directory, twin = made(case)
        expected = golden(twin, make_prompts([1, 16, 33], 320), NEW_TOKENS)
        for model in (directory, twin):
            executor = make_executor(model, cpu_backend="native")
            assert answers(executor, expected, chunk=13) == [each.tokens for each in expected], model


def test_a_start_says_what_is_held_and_counts_weights_by_form(
    made: Callable[[str], tuple[Path, Path]], caplog: pytest.LogCaptureFixture
) -> None:
    """Compares with the twin: that of numbers has as many parameters."""
    caplog.set_level("INFO")
    for case, forms in (("awq", ("int4",)), ("compressed-tensors", ("int8", "int4", "fp8")), ("fp8", ("fp8",))):
        directory, twin = made(case)
        engine, plain = make_engine(directory), make_engine(twin)
        assert engine.forms == forms and engine.parameters == plain.parameters
        assert engine.pool.spec.content() != plain.pool.spec.content()
        words = " and ".join(forms)
        assert any(f"in fp32, {words} weights" in record.getMessage() for record in caplog.records)


def test_what_is_quantized_already_stays(
    made: Callable[[str], tuple[Path, Path]], caplog: pytest.LogCaptureFixture
) -> None:
    """The head, which the checkpoint has left out, is quantized; a line says what `--quantization` is for."""
    directory, twin = made("awq")
    caplog.set_level("INFO")
    engine = make_engine(directory, quantization="int4")
    assert engine.forms == ("int4", "int8")
    said = "--quantization int4 is for what is not quantized: int4 of the checkpoint stay"
    assert said in [record.getMessage() for record in caplog.records]
    contents = {make_engine(directory, quantization=each).pool.spec.content() for each in ("none", "int4", "int8")}
    assert len(contents) == 3
    caplog.clear()
    make_engine(twin, quantization="int4")
    assert "is for what is not quantized" not in caplog.text


def test_a_start_takes_the_devices_own_format_for_what_is_not_quantized(
    made: Callable[[str], tuple[Path, Path]],
) -> None:
    directory, twin = made("awq")
    engine = make_engine(directory, dtype="auto")
    assert engine.backend.dtype == make_engine(twin, dtype="auto").backend.dtype


def test_weights_are_sized_by_the_form_that_they_are_held_in(
    made: Callable[[str], tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what fp32 would take is there: too little for operators that have no int4, enough for int4."""
    directory, _ = made("awq")
    config = EngineConfig(model="m", dtype="fp32")
    weights = open_checkpoint(directory).parameters()
    monkeypatch.setattr(sizing, "available_memory", lambda: weights.total() * 2)
    cpu = torch.device("cpu")
    refuse_large_weights(config, weights, torch.float32, cpu, frozenset({"int4"}))
    with pytest.raises(ConfigError, match=r"its weights take .* in fp32, and only"):
        refuse_large_weights(config, weights, torch.float32, cpu)


def test_a_truncated_file_is_named(made: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    directory, _ = made("awq")
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"model\.safetensors is broken or truncated"):
        make_engine(tmp_path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"quant_method": "bitsandbytes"},
            "quantized with bitsandbytes are not supported; serve the checkpoint",
        ),
        (
            {"quant_method": "aqlm"},
            "m: checkpoints quantized with aqlm are not supported; supported: fp32, .*, awq",
        ),
        ({}, "m: checkpoints quantized with unknown are not supported"),
        ("awq", "m: the quantization_config in config.json is no object: awq"),
    ],
)
def test_formats_that_are_unknown_are_named(config: Any, words: str) -> None:
    for raw in ({"quantization_config": config}, {"text_config": {"quantization_config": config}}):
        with pytest.raises(ModelError, match=words):
            format_of(raw, "m")
