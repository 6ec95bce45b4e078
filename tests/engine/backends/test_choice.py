"""Which operators serve, and who is told. The native ones need a C compiler."""

import logging
import re
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from contracts.errors import ConfigError
from engine.backends.native.library import LinearArguments, load
from engine.executor import Executor
from engine.plan import StepPlan, Work
from tests.engine.drive import GREEDY, run, start
from tests.engine.test_golden import make_engine, make_executor
from tests.reference import build_model, golden, make_prompts
from tests.variants import SIZES, VARIANTS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("backend") / "model", VARIANTS["llama"]())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def answer(executor: Executor) -> list[list[int]]:
    executor.launch(StepPlan(0, [Work(1, 0, [5, 6, 7], ([1],), GREEDY)]))
    return executor.collect().tokens


def test_the_start_says_which_operators_compute(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for backend, used in (("auto", "native"), ("native", "native"), ("torch", "torch")):
        caplog.clear()
        assert make_engine(model, cpu_backend=backend).backend.name == used
        assert [f"model on cpu in fp32, {used} operators: " in line for line in lines(caplog)] == [True]


BROKEN = """#!/bin/sh
[ "$1" = --version ] && exit 0
printf 'In file included from linear.c:\\nvector.h:3:1: error: unknown type name\\nvector.h:9:1: error: more\\n' >&2
exit 1
"""


@pytest.mark.parametrize("broken", [False, True], ids=["none", "broken"])
def test_without_a_compiler_torch_serves_and_one_line_says_why(
    broken: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor with one that fails: its first error is the reason."""
    expected = answer(make_executor(model, cpu_backend="torch"))
    compiler = tmp_path / "compiler"
    compiler.write_text(BROKEN)
    compiler.chmod(0o700)
    if broken:
        monkeypatch.setenv("CC", str(compiler))
        why = f"{compiler} fails: vector.h:3:1: error: unknown type name"
    else:
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CC", raising=False)
        why = (
            "there is no C compiler on the PATH (looked for cc, gcc, clang); install one, or run `./baton operators "
            "--build --out DIR` on another host and set BATON_OPERATORS to DIR"
        )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    caplog.set_level(logging.INFO)
    executor = make_executor(model)
    assert executor.engine.backend.name == "torch" and answer(executor) == expected
    assert [line for line in lines(caplog) if "not native" in line] == [f"torch operators, not native ones: {why}"]
    with pytest.raises(ConfigError, match=f"^--cpu-backend: 'native': {re.escape(why)}$"):
        make_executor(model, cpu_backend="native")


def test_what_the_native_operators_do_not_know_is_torchs(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They answer as the reference does."""
    config = LlamaConfig(**{**SIZES, "head_dim": 640, "num_attention_heads": 2, "num_key_value_heads": 1})
    wide = build_model(tmp_path / "wide", config)
    (expected,) = golden(wide, make_prompts([40], 320), 4)
    caplog.set_level(logging.INFO)
    for directory, dtype, why in (
        (model, "fp16", "fp32 and bf16 are supported, not fp16"),
        (wide, "fp32", "even head sizes up to 576 are supported, not 640"),
    ):
        caplog.clear()
        executor = make_executor(directory, dtype=dtype, max_model_len=64)
        assert executor.engine.backend.name == "torch"
        assert [line for line in lines(caplog) if "not native" in line] == [f"torch operators, not native ones: {why}"]
        with pytest.raises(ConfigError, match=f"^--cpu-backend: 'native': {why}$"):
            make_executor(directory, dtype=dtype, max_model_len=64, cpu_backend="native")
    assert run(executor, start(executor, [expected.prompt], 4), 4) == [expected.tokens]


def test_operators_that_multiply_wrongly_do_not_serve(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a processor would show that a compiler, or we, took for another: here the last row is forgotten."""
    native = load()
    multiply = native.baton_linear

    def forgetful(layer: LinearArguments, x: int, stride: int, rows: int, y: int) -> None:
        multiply(layer, x, stride, rows - 1, y)

    monkeypatch.setattr(native, "baton_linear", forgetful)
    monkeypatch.setattr("engine.backends.choice.load", lambda: native)
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
    caplog.set_level(logging.INFO)
    assert make_engine(model).backend.name == "torch"
    why = "the native operators multiply torch.float32 wrongly on this processor"
    assert f"torch operators, not native ones: {why}" in lines(caplog)
    with pytest.raises(ConfigError, match=f"--cpu-backend: 'native': {why}"):
        make_executor(model, cpu_backend="native")
