"""The language model of a checkpoint that also reads images is found wherever its writer has put it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.errors import ModelError
from engine.executor import Executor
from tests.engine.drive import answers
from tests.engine.test_golden import make_engine
from tests.reference import Golden, build_model, golden, make_prompts
from tests.variants import VARIANTS

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


def test_a_part_of_unknown_purpose_is_refused(made: tuple[Path, list[Golden]], tmp_path: Path) -> None:
    def change(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
        return name.replace("model.visual.", "model.ears."), tensor

    with pytest.raises(ModelError, match=r"no place for the weight model\.ears\."):
        make_engine(rewritten(made[0], tmp_path / "model", change), cpu_backend="torch")
