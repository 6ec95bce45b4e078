"""Reads a quantized checkpoint for a model that transformers' code computes.

transformers gets the numbers that weights stand for. Its linear layers are replaced afterwards by the backend's, which
multiply by the checkpoint's own codes. Experts that transformers stacks in one tensor stay numbers.
"""

import re
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from contracts.errors import ModelError
from engine.model.checkpoint.weights import Checkpoint
from engine.model.quantized import Quantized, write
from engine.model.spellings import is_beside_text
from engine.wrapped.config import OwnConfig

NAMES_ALONE = {
    r"^model\.language_model\.": "model.",
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head": "lm_head",
}
"""Names of a language model's tensors alone, by regexes of the places where transformers and publishers put it."""


@dataclass(frozen=True)
class StoredNumbers:
    """A checkpoint's tensors for transformers, and what the linear layers' weights were, by the layers' names."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    quantized: dict[str, Quantized] = field(default_factory=dict)


def read_numbers(checkpoint: Checkpoint, own: OwnConfig, dtype: torch.dtype) -> StoredNumbers:
    """Reads all tensors of the language model; what was quantized becomes numbers in `dtype`.

    Raises `ModelError` if a tensor is broken, or packed for a layer that the model lacks.
    """
    shapes, found = _shapes(own), StoredNumbers()
    for name in checkpoint.names():
        form, weights = checkpoint.stands_for(name)
        if not weights or (own.beside_images and is_beside_text(name)):
            continue
        if form is None:
            found.tensors[name] = checkpoint.tensor(name, checkpoint.shape(name))
            continue
        layer, _, part = name.rpartition(".")
        alone = _alone(layer)
        stored = checkpoint.shape(name)
        if alone not in shapes and (part != "weight" or len(stored) != 2):
            raise ModelError(f"{own.name}: {name} is quantized, and transformers' code has no linear layer {alone}")
        shape = shapes.get(alone) or (stored[0], stored[1])
        weight = checkpoint.weight(layer, shape)
        numbers = torch.empty(shape, dtype=dtype)
        write(weight, numbers)
        found.tensors[f"{layer}.weight"] = numbers
        if alone in shapes and isinstance(weight, Quantized):
            found.quantized[alone] = weight
    return found


def _shapes(own: OwnConfig) -> dict[str, tuple[int, int]]:
    """Returns the shapes `[out, in]` of the linear layers by name."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(own.config)
    linears = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    return {name: (module.out_features, module.in_features) for name, module in linears.items()}


def _alone(layer: str) -> str:
    for pattern, place in NAMES_ALONE.items():
        layer = re.sub(pattern, place, layer)
    return layer
