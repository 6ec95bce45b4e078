"""Reads a single layer out of a checkpoint that a test makes of tensors."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from engine.model.checkpoint.weights import Checkpoint
from engine.model.open_checkpoint import open_checkpoint
from engine.model.quantized import Quantized

NAME = "model.layers.0.mlp.up_proj"


def checkpoint(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor], name: str = NAME) -> Checkpoint:
    """Opens a checkpoint that has the tensors of one layer, by the ends of their names."""
    whole = {f"{name}.{end}": tensor.contiguous() for end, tensor in tensors.items()}
    save_file(whole, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps({"quantization_config": config}))
    return open_checkpoint(directory)


def read(
    directory: Path, config: dict[str, Any], tensors: dict[str, Tensor], shape: tuple[int, int], name: str = NAME
) -> Quantized:
    """Reads that layer, which is quantized, and finds that nothing of it is left."""
    opened = checkpoint(directory, config, tensors, name)
    found = opened.weight(name, shape)
    opened.refuse_unused()
    assert isinstance(found, Quantized)
    assert opened.parameters() == {found.form: shape[0] * shape[1], None: 0}
    return found
