"""Weights are counted from a config as from the tensors of a model that was made from it."""

from pathlib import Path

import pytest

from checkpoints.config_size import weight_counts
from checkpoints.weight_sizes import TOKEN_TABLE_REGEX, tensor_bytes, text_config
from tests.reference import build_model
from tests.variants import VARIANTS

SMALL_TENSORS_SHARE = 0.01
"""Of norms, biases and sinks, which the count leaves out, in these small models."""


@pytest.mark.parametrize(
    "family",
    ["llama", "gemma2", "granite", "mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss", "deepseek-v2", "deepseek-v3"],
)
def test_counts_are_those_of_the_tensors(tmp_path: Path, family: str) -> None:
    model = build_model(tmp_path / "model", VARIANTS[family]())
    tensors = tensor_bytes(model, "bf16", "none")
    linear = sum(size / 2 for name, size in tensors.items() if not TOKEN_TABLE_REGEX.search(name))
    counts = weight_counts(text_config(model))
    assert 0 <= linear - counts.stored < SMALL_TENSORS_SHARE * linear
    tables = {size / 2 for name, size in tensors.items() if TOKEN_TABLE_REGEX.search(name)}
    assert tables == {counts.table}
