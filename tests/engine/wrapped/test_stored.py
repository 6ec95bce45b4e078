"""Quantized checkpoints of what transformers computes give the tokens of the numbers that they mean."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from contracts.errors import ModelError
from engine.executor import Executor
from tests.engine.drive import answers
from tests.engine.model.formats.writers import Written, fp8, gptq, rewrite
from tests.engine.test_golden import make_engine
from tests.engine.wrapped.models import WRAPPED
from tests.reference import build_model, golden, make_prompts

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
Write = Callable[[str, Tensor], Written]
CASES: dict[str, tuple[str, dict[str, Any], Write, str]] = {
    "linear layers in 4 bits": ("arcee", GPTQ, lambda name, weight: gptq(weight, 4, 32, version=1), "int4"),
    "a language model beside images": (  # as Ministral 3 is published
        "mistral3",
        {"quant_method": "fp8", "activation_scheme": "static"},
        lambda name, weight: fp8(weight, None, "weight_scale_inv"),
        "fp8",
    ),
    "experts": (  # as MiniMax-M2 is published
        "minimax_m2",
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        lambda name, weight: fp8(weight, (128, 128)),
        "fp8",
    ),
}


def stored(kind: str, config: dict[str, Any], write: Write, directory: Path) -> tuple[Path, Path]:
    """Makes a quantized model, and its twin of numbers."""
    twin = build_model(directory / "twin", WRAPPED[kind]())
    return rewrite(twin, directory / "model", config, write), twin


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_the_numbers(case: str, tmp_path: Path) -> None:
    kind, config, write, form = CASES[case]
    directory, twin = stored(kind, config, write, tmp_path)
    expected = golden(twin, make_prompts([1, 16, 33], 256), 6)
    engine = make_engine(directory, model_impl="transformers")
    assert engine.forms == (form,)
    assert answers(Executor(engine), expected, chunk=13) == [each.tokens for each in expected]


def test_experts_that_are_packed_are_refused_by_name(tmp_path: Path) -> None:
    directory, _ = stored("minimax_m2", GPTQ, lambda name, weight: gptq(weight, 4, 32, version=1), tmp_path)
    with pytest.raises(ModelError, match=r"experts\.0\.w1\.qweight is quantized, and transformers' code has no linear"):
        make_engine(directory, model_impl="transformers")
