"""Experts are read from the checkpoint one at a time; one that is missing, misshapen or too many is named."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.errors import ModelError
from engine.model.checkpoint.weights import Checkpoint
from tests.engine.test_golden import make_engine
from tests.reference import build_model
from tests.variants import VARIANTS

EXPERT = "model.layers.1.block_sparse_moe.experts.3"


@pytest.mark.parametrize(
    ("name", "to", "words"),
    [
        (f"{EXPERT}.w3.weight", None, f"the weights lack {EXPERT}.w3.weight"),
        (f"{EXPERT}.w2.weight", "cut", rf"{EXPERT}.w2.weight has shape \[128, 191\], but the config says \[128, 192\]"),
        (f"{EXPERT}.w1.weight", f"{EXPERT[:-1]}5.w1.weight", f"the weights lack {EXPERT}.w1.weight"),
        ("model.layers.0.block_sparse_moe.gate.weight", None, "lack model.layers.0.block_sparse_moe.gate.weight"),
    ],
)
def test_a_strange_expert_is_named(name: str, to: str | None, words: str, tmp_path: Path) -> None:
    directory = build_model(tmp_path / "model", VARIANTS["mixtral"]())
    tensors = load_file(directory / "model.safetensors")
    changed = tensors.pop(name)
    if to is not None:
        tensors[name if to == "cut" else to] = changed[:, :-1].contiguous() if to == "cut" else changed
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=words):
        make_engine(directory, cpu_backend="torch")


def test_one_expert_too_many_is_named(tmp_path: Path) -> None:
    directory = build_model(tmp_path / "model", VARIANTS["mixtral"]())
    tensors = load_file(directory / "model.safetensors")
    more = EXPERT.replace(".3", ".5") + ".w1.weight"
    save_file(tensors | {more: torch.zeros(192, 128)}, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"no place for the weight {more}"):
        make_engine(directory, cpu_backend="torch")


def test_a_part_of_a_tensor_is_all_that_is_asked_for(tmp_path: Path) -> None:
    whole = torch.randn(3, 4, 5)
    save_file({"all": whole}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert torch.equal(checkpoint.part("all", (3, 4, 5), 2), whole[2])
    checkpoint.refuse_unused()
    with pytest.raises(ModelError, match=r"all has shape \[3, 4, 5\], but the config says \[4, 4, 5\]"):
        checkpoint.part("all", (4, 4, 5), 0)
