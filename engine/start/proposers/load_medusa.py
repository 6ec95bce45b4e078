"""Loads Medusa heads for a model, with vLLM's tensor names or those of FasterDecoding's first releases.

    blocks.{head}.layers.{block}.weight [hidden, hidden], .bias [hidden]     {head}.{block}.linear.weight, .bias
    lm_heads.{head}.weight [vocab, hidden]                                   {head}.{blocks}.weight

config.json has both counts, as `num_heads` and `num_hidden_layers`, or `medusa_num_heads` and `medusa_num_layers`.
Missing biases are 0. If output weights are missing, or config.json has `original_lm_head`, the model's own are used.
`medusa_choices` in config.json lists the tree of draft tokens as paths of ranks; without it, acceptance rates are
assumed.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from checkpoints.model_location import DESCRIPTION_PATTERNS, locate
from contracts.errors import ConfigError, ModelError
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config import ModelConfig
from engine.model.config_files import read_json
from engine.model.layers.linear import Linear, LinearWeights
from engine.speculation.proposers.choices import MAX_CHOICES, Choice, Tree, choices_problem, likeliest
from engine.speculation.proposers.medusa import MedusaHeads, MedusaProposer
from engine.start.loaded_model import LoadedModel
from infra.process.status import Progress

HEAD_FILES = ("model.safetensors", "medusa_lm_head.safetensors")
PICKLED_FILE = "medusa_lm_head.pt"
COUNT_FIELDS = (("num_heads", "medusa_num_heads"), ("num_hidden_layers", "medusa_num_layers"))
MEDUSA_OPTION = "--medusa"
MAX_HEADS = 16
"""Maximum number of heads, and of blocks in each."""
_NAME_PREFIX = "medusa_heads."
_BLOCK_NAME = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
_OUTPUT_NAME = re.compile(r"(\d+)\.\d+\.weight")


def load_medusa(location: str, target: LoadedModel, progress: Progress) -> MedusaProposer:
    """Loads the proposer for `target`.

    Raises `ModelError` for heads that are missing, broken or made for another model, and `ConfigError` for a target
    without access to its hidden states.
    """
    if not isinstance(target.config, ModelConfig):
        why = f"heads read hidden states, which transformers' own code does not give for {target.config.name}"
        raise ConfigError(MEDUSA_OPTION, location, why)
    directory = locate(location, progress, DESCRIPTION_PATTERNS + HEAD_FILES, weights=False)
    config = read_json(directory / "config.json")
    count, blocks = (_counted(directory, config, names) for names in COUNT_FIELDS)
    checkpoint = Checkpoint(directory, files=_tensors(directory))
    hidden, vocab = target.config.hidden_size, target.config.vocab_size
    linears, device, dtype = target.backend.linears, target.backend.device, target.backend.dtype
    biased = checkpoint.holds("blocks.0.layers.0.bias")

    def weight(head: int, block: int) -> Tensor:
        return checkpoint.tensor(f"blocks.{head}.layers.{block}.weight", (hidden, hidden)).to(device)

    def bias(head: int, block: int) -> Tensor | None:
        return checkpoint.tensor(f"blocks.{head}.layers.{block}.bias", (hidden,)).to(device, dtype) if biased else None

    heads = range(count)
    biases = [found for head in heads if (found := bias(head, 0)) is not None]
    with torch.inference_mode():
        first = linears.fused(LinearWeights([weight(head, 0) for head in heads], torch.cat(biases) if biased else None))
        later = tuple(
            tuple(linears.fused(LinearWeights([weight(head, block)], bias(head, block))) for head in heads)
            for block in range(1, blocks)
        )
        outputs: tuple[Linear, ...] = ()
        is_original = config.get("original_lm_head") is True
        if checkpoint.holds("lm_heads.0.weight") and not is_original:
            lm_heads = (checkpoint.tensor(f"lm_heads.{head}.weight", (vocab, hidden)) for head in heads)
            own = target.group.shard.part(vocab)
            outputs = tuple(linears.fused(LinearWeights([output[own].to(device)])) for output in lm_heads)
    checkpoint.refuse_unused(beginnings=("lm_heads.",) if is_original else ())
    tree = Tree.of(_choices(directory, config, count))
    made = MedusaHeads(count, first, later, outputs, target.group, vocab)
    return MedusaProposer(made, target.model, target.backend, tree)


def _choices(directory: Path, config: dict[str, Any], heads: int) -> Sequence[Choice]:
    choices = config.get("medusa_choices")
    if choices is None:
        return likeliest(heads, MAX_CHOICES)
    if wrong := choices_problem(choices, heads):
        raise ModelError(f"{directory.name}: medusa_choices of config.json: {wrong}")
    return [tuple(path) for path in choices[:MAX_CHOICES]]


def _counted(directory: Path, config: dict[str, Any], names: tuple[str, str]) -> int:
    name = next((name for name in names if name in config), names[0])
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_HEADS:
        raise ModelError(f"{directory.name}: config.json says {name} {value!r}, not a number from 1 to {MAX_HEADS}")
    return value


def _tensors(directory: Path) -> dict[str, Any]:
    path = next((directory / name for name in HEAD_FILES if (directory / name).is_file()), None)
    if path is None:
        if (directory / PICKLED_FILE).is_file():
            why = f"{PICKLED_FILE} is a pickle, which is never loaded; save it as {HEAD_FILES[1]}"
            raise ModelError(f"{directory.name}: {why}")
        raise ModelError(f"{directory.name} has no {HEAD_FILES[0]}: not a directory of Medusa heads")
    try:
        opened: Any = safe_open(str(path), framework="pt")
        names = list(opened.keys())
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{directory.name}: {path.name} is broken or truncated: {str(error).strip()}") from None
    return {_named(name): _Renamed(opened, name) for name in names}


def _named(name: str) -> str:
    name = name.removeprefix(_NAME_PREFIX)
    if found := _BLOCK_NAME.fullmatch(name):
        return f"blocks.{found[1]}.layers.{found[2]}.{found[3]}"
    if found := _OUTPUT_NAME.fullmatch(name):
        return f"lm_heads.{found[1]}.weight"
    return name


class _Renamed:
    """One tensor of a file under another name."""

    def __init__(self, opened: Any, name: str) -> None:
        self._opened = opened
        self._name = name

    def get_tensor(self, _: str) -> Tensor:
        tensor: Tensor = self._opened.get_tensor(self._name)
        return tensor

    def get_slice(self, _: str) -> Any:
        return self._opened.get_slice(self._name)
