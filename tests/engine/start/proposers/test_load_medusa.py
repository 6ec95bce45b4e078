"""Medusa heads are read under both names that they are published by; what is not this model's is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.errors import ConfigError, ModelError
from engine.speculation.proposers.medusa import MedusaProposer
from tests.engine.grammars.answering import random_model
from tests.engine.speculation.medusa_heads import Naming, build_heads
from tests.engine.test_golden import make_engine


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("target") / "target")


def loaded(target: Path, heads: Path, **changes: object) -> MedusaProposer:
    proposer = make_engine(target, speculation="medusa", medusa=str(heads), **changes).proposer
    assert isinstance(proposer, MedusaProposer)
    return proposer


@pytest.mark.parametrize("naming", ["first", "vllm"])
@pytest.mark.parametrize("blocks", [1, 3])
@torch.inference_mode()
def test_heads_are_what_was_saved(naming: Naming, blocks: int, target: Path, tmp_path: Path) -> None:
    saved = build_heads(tmp_path / "heads", 3, blocks, naming=naming)
    hidden = torch.randn(5, 64)
    expected = torch.stack([torch.stack(saved(row)) for row in hidden]).flatten(0, 1)
    for backend in ("native", "torch"):
        proposer = loaded(target, tmp_path / "heads", cpu_backend=backend)
        found = proposer.heads.logits(hidden, proposer.model)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4), backend
        assert proposer.weights_bytes() >= 4 * 3 * (blocks * 64 * 65 + 64 * 2048)


@pytest.mark.parametrize("original", [True, False])
@torch.inference_mode()
def test_without_output_weights_the_model_s_own_serve(original: bool, target: Path, tmp_path: Path) -> None:
    """So do they where config.json says that those of the file are the model's; and without biases there are none."""
    heads = tmp_path / "heads"
    build_heads(heads, 2, 1, original_lm_head=original)
    tensors = load_file(heads / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if "bias" not in name}
    if not original:
        kept = {name: value for name, value in kept.items() if not name.startswith("lm_heads")}
    save_file(kept, heads / "model.safetensors")
    proposer, hidden = loaded(target, heads), torch.randn(1, 64)
    first = hidden + torch.nn.functional.silu(hidden @ kept["blocks.0.layers.0.weight"].T)
    found = proposer.heads.logits(hidden, proposer.model)
    assert torch.allclose(found[:1], proposer.model.logits(first), rtol=1e-4, atol=1e-4)


def change(heads: Path, **said: object) -> None:
    config = json.loads((heads / "config.json").read_text())
    (heads / "config.json").write_text(json.dumps(config | said))


def rename(heads: Path, name: str, to: str) -> None:
    tensors = load_file(heads / "model.safetensors")
    tensors[to] = tensors.pop(name)
    save_file(tensors, heads / "model.safetensors")


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no number": (
        lambda heads: change(heads, num_heads="two"),
        "config.json says num_heads 'two', not a number from 1",
    ),
    "none": (lambda heads: change(heads, num_hidden_layers=0), "says num_hidden_layers 0, not a number from 1 to 16"),
    "too many": (lambda heads: change(heads, num_heads=3), "the weights lack blocks.2.layers.0.bias"),
    "too few": (lambda heads: change(heads, num_heads=1), "no place for the weight blocks.1.layers.0.bias and 2 more"),
    "fewer words": (
        lambda heads: rename(heads, "lm_heads.0.weight", "token_map"),
        "no place for the weight .* and 1 more",
    ),
    "nothing": (
        lambda heads: (heads / "model.safetensors").unlink(),
        "heads has no model.safetensors: not a directory",
    ),
    "broken": (
        lambda heads: (heads / "model.safetensors").write_bytes(b"PK"),
        "model.safetensors is broken or truncated",
    ),
    "no tree": (
        lambda heads: change(heads, medusa_choices=[[0], [1, 0]]),
        r"heads: medusa_choices of config.json: \[1, 0\] stands before \[1\]",
    ),
    "no config": (lambda heads: (heads / "config.json").unlink(), "heads has no config.json"),
    "a pickle": (
        lambda heads: (heads / "model.safetensors").rename(heads / "medusa_lm_head.pt"),
        "medusa_lm_head.pt is a pickle, which is never loaded; save it as medusa_lm_head.safetensors",
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_directory_of_something_else_is_refused(how: str, target: Path, tmp_path: Path) -> None:
    build_heads(tmp_path / "heads", 2, 1)
    damage, why = REFUSED[how]
    damage(tmp_path / "heads")
    with pytest.raises(ModelError, match=why):
        loaded(target, tmp_path / "heads")


def test_heads_of_another_model_are_refused_by_their_shape(tmp_path: Path, target: Path) -> None:
    build_heads(tmp_path / "heads", 2, 1)
    tensors = load_file(tmp_path / "heads" / "model.safetensors")
    wide = {name: torch.zeros(*[2 * size for size in value.shape]) for name, value in tensors.items()}
    save_file(wide, tmp_path / "heads" / "model.safetensors")
    with pytest.raises(ModelError, match=r"blocks.0.layers.0.bias has shape \[128\], but the config says \[64\]"):
        loaded(target, tmp_path / "heads")


def test_a_model_that_transformers_computes_has_no_heads(tmp_path: Path, target: Path) -> None:
    build_heads(tmp_path / "heads", 2, 1)
    with pytest.raises(
        ConfigError,
        match=r"--medusa: .*heads read hidden states, which transformers' own code does not give for target",
    ):
        loaded(target, tmp_path / "heads", model_impl="transformers")
