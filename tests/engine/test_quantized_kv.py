"""Tokens over a quantized pool equal those of transformers over a cache that rounds alike, whatever the chunks."""

from pathlib import Path

import pytest
import torch

from engine.model.kv_layout import quantized_layer
from launcher.devices.gpus import visible_gpus
from tests.engine.drive import run, start
from tests.engine.test_golden import make_executor
from tests.reference import Golden, build_model, golden, make_prompts
from tests.rounded_cache import load_rounding
from tests.variants import VARIANTS

LENGTHS = [1, 7, 16, 33, 64, 97]
NEW_TOKENS = 8
BACKENDS = ("native", "torch")
DEVICE = "cuda" if visible_gpus() else "cpu"
TIE_MARGIN = 0.02
"""Two correct programs may round a number of a key to different sides of a tie: fp32's own error decides. Logits, whose
standard deviation is 1.1 here, were seen to move by up to 0.01 then. Where the two best are closer, a text ends."""


def certain(each: Golden) -> list[int]:
    """Returns the tokens before the first that was too close to call."""
    close = [at for at, margin in enumerate(each.margins) if margin < TIE_MARGIN]
    return each.tokens[: close[0]] if close else each.tokens


@pytest.mark.parametrize(
    ("variant", "form"), [("llama", "int8"), ("qwen3-layer-types", "fp8"), ("gpt-oss", "fp8"), ("deepseek-v3", "int8")]
)
def test_tokens_are_those_of_a_cache_that_rounds_alike(variant: str, form: str, tmp_path: Path) -> None:
    """Compares heads, windows, sinks and latent vectors.

    A chunk reads its own tokens as they were stored: so all are alike.
    """
    config = VARIANTS[variant]()
    directory = build_model(tmp_path / variant, config)
    prompts = make_prompts(LENGTHS, config.get_text_config().vocab_size)
    expected = golden(directory, prompts, NEW_TOKENS, load=load_rounding(form), safety=0.0)
    sure = [certain(each) for each in expected]
    assert sum(map(len, sure)) > 0.6 * NEW_TOKENS * len(LENGTHS), "too little is certain"
    for backend in BACKENDS:
        for chunk in (5, 64):
            executor = make_executor(directory, cpu_backend=backend, kv_dtype=form)
            assert executor.engine.backend.name == backend
            found = run(executor, start(executor, prompts, NEW_TOKENS, stagger=1), NEW_TOKENS, chunk=chunk)
            assert [own[: len(tokens)] for own, tokens in zip(found, sure, strict=True)] == sure, (backend, chunk)


@pytest.mark.parametrize("form", ["int8", "fp8"])
def test_a_scale_of_another_token_is_noticed(form: str, tmp_path: Path) -> None:
    """Shows by a mutation that the comparison above would see it: scales of one layer, each at its neighbour."""
    config = VARIANTS["llama"]()
    directory = build_model(tmp_path / "model", config)
    prompts = make_prompts([40, 50, 60], config.vocab_size, seed=3)
    found = []
    for mutated in (False, True):
        executor = make_executor(directory, cpu_backend="torch", kv_dtype=form)
        engine, running = executor.engine, start(executor, prompts, NEW_TOKENS)
        run(executor, running, 1, chunk=64)
        layer = quantized_layer(engine.pool.layers[1], engine.model_config.layers[1].attention)
        assert layer is not None
        if mutated:
            layer.scales.copy_(layer.scales.roll(1, -1).clone())
        found.append(run(executor, running, NEW_TOKENS))
    assert all(spoilt != right for right, spoilt in zip(*found, strict=True))


@pytest.mark.parametrize(("variant", "form"), [("llama", "int8"), ("deepseek-v3", "fp8")])
def test_triton_gives_the_tokens_too(variant: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a prompt in chunks, then decodes: of latent vectors one chunk in either form."""
    monkeypatch.setattr("engine.backends.triton.attention.latent_chunks.MIN_EXPANDED_QUERIES", 10)
    config = VARIANTS[variant]()
    config.num_hidden_layers = 2
    directory = build_model(tmp_path / "model", config)
    all_of_them = golden(directory, make_prompts([20] * 6, 320), 3, load=load_rounding(form), safety=0.0)
    expected = next(each for each in all_of_them if certain(each) == each.tokens)
    settings = {"device": DEVICE, f"{DEVICE}_backend": "triton", "kv_dtype": form}
    executor = make_executor(directory, **settings, max_batch_tokens=16, max_sequences=2, max_model_len=64)
    found = run(executor, start(executor, [expected.prompt], 3), 3, chunk=11)
    assert found == [expected.tokens]


def test_transformers_own_code_is_proved_over_numbers_and_served_over_bytes(tmp_path: Path) -> None:
    directory = build_model(tmp_path / "model", VARIANTS["llama"]())
    prompts = make_prompts([20, 33], VARIANTS["llama"]().vocab_size)
    found = []
    for whose in ("native", "transformers"):
        executor = make_executor(directory, cpu_backend="torch", kv_dtype="fp8", model_impl=whose)
        assert executor.engine.pool.layers[0].dtype == torch.float8_e4m3fn
        found.append(run(executor, start(executor, prompts, NEW_TOKENS), NEW_TOKENS, chunk=13))
    assert found[0] == found[1]
