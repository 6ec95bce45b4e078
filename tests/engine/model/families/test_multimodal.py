"""The language model of a checkpoint that also reads images is found wherever its writer has put it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Kimi_K25Config

from contracts.errors import ModelError
from engine.executor import Executor
from tests.engine.drive import answers
from tests.engine.test_golden import make_engine
from tests.reference import Golden, build_model, golden, make_prompts
from tests.variants import EYES, LATENT, SIZES, VARIANTS

INSIDE = "model.language_model."
PLACES: dict[str, Callable[[str], str]] = {
    "as transformers has it": lambda name: name,
    "as published": lambda name: name.replace(INSIDE, "model.").replace("model.visual.", "visual."),
    "around a model": lambda name: name.replace(INSIDE, "language_model.model.").replace(
        "lm_head.", "language_model.lm_head."
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Golden]]:
    config = VARIANTS["qwen3-vl-moe"]()
    directory = build_model(tmp_path_factory.mktemp("images") / "model", config)
    return directory, golden(directory, make_prompts([9, 21], config.get_text_config().vocab_size), 6)


def rewritten(directory: Path, target: Path, change: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]]) -> Path:
    target.mkdir()
    (target / "config.json").write_text((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    save_file(dict(change(name, tensor) for name, tensor in tensors.items()), target / "model.safetensors")
    return target


@pytest.mark.parametrize("place", PLACES)
def test_every_place_gives_the_references_tokens(place: str, made: tuple[Path, list[Golden]], tmp_path: Path) -> None:
    """With experts transposed, as they are published."""

    def change(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
        transposed = place == "as published" and ".experts." in name
        return PLACES[place](name), tensor.transpose(1, 2).contiguous() if transposed else tensor

    directory = rewritten(made[0], tmp_path / "model", change)
    found = answers(Executor(make_engine(directory, cpu_backend="torch")), made[1], stagger=1, chunk=13)
    assert found == [each.tokens for each in made[1]]


def test_kimi_k2_5_is_read_as_it_is_published(tmp_path: Path) -> None:
    """transformers 5 writes other names than it reads: blocks for layers."""
    config = Kimi_K25Config(
        text_config={
            **{**SIZES, **LATENT},
            "model_type": "kimi_k2",
            "q_lora_rank": 40,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
        vision_config={**EYES, "model_type": "kimi_k25_vision"},
        tie_word_embeddings=False,
    )
    built = build_model(tmp_path / "built", config)
    expected = golden(built, make_prompts([9, 21], config.get_text_config().vocab_size), 6)
    directory = rewritten(
        built, tmp_path / "model", lambda name, tensor: (name.replace(".blocks.", ".layers."), tensor)
    )
    found = answers(Executor(make_engine(directory, cpu_backend="torch")), expected, stagger=1, chunk=13)
    assert found == [each.tokens for each in expected]


def test_a_head_of_its_own_counts_where_the_config_is_silent(tmp_path: Path) -> None:
    """Mistral Small 3.1's config does not say that head and embedding differ, and its class takes them for one."""
    built = build_model(tmp_path / "built", VARIANTS["mistral3-images"]())
    raw = json.loads((built / "config.json").read_text())
    expected = golden(built, make_prompts([9, 21], 320), 6)
    del raw["tie_word_embeddings"]
    (built / "config.json").write_text(json.dumps(raw))
    found = answers(Executor(make_engine(built, cpu_backend="torch")), expected, stagger=1, chunk=13)
    assert found == [each.tokens for each in expected]


def test_a_part_of_unknown_purpose_is_refused(made: tuple[Path, list[Golden]], tmp_path: Path) -> None:
    def change(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
        return name.replace("model.visual.", "model.ears."), tensor

    with pytest.raises(ModelError, match=r"no place for the weight model\.ears\."):
        make_engine(rewritten(made[0], tmp_path / "model", change), cpu_backend="torch")
