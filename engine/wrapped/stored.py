"""Reads a quantized checkpoint for a model that transformers' code computes.

transformers gets dequantized weights. Its linear layers are replaced afterwards by the backend's, which multiply by the
checkpoint's own codes. Experts that transformers stacks in one tensor stay dequantized.
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

TEXT_MODEL_PREFIXES = {
    r"^model\.language_model\.": "model.",
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head": "lm_head",
}
"""Prefixes of a language model's tensors without images, by regexes of the prefixes that they have beside images."""


@dataclass(frozen=True)
class DequantizedCheckpoint:
    """A checkpoint's dequantized tensors by name, and the quantized weights of linear layers by the layer's name."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    quantized: dict[str, Quantized] = field(default_factory=dict)


def read_dequantized(checkpoint: Checkpoint, own: OwnConfig, dtype: torch.dtype) -> DequantizedCheckpoint:
    """Reads all tensors of the language model, quantized ones as floats in `dtype`.

    Raises `ModelError` if a tensor is broken, or packed for a layer that the model lacks.
    """
    shapes, found = _shapes(own), DequantizedCheckpoint()
    for name in checkpoint.names():
        form, weights = checkpoint.weights_per_element(name)
        if not weights or (own.beside_images and is_beside_text(name)):
            continue
        if form is None:
            found.tensors[name] = checkpoint.tensor(name, checkpoint.shape(name))
            continue
        layer, _, part = name.rpartition(".")
        text_name = _text_name(layer)
        stored = checkpoint.shape(name)
        if text_name not in shapes and (part != "weight" or len(stored) != 2):
            raise ModelError(f"{own.name}: {name} is quantized, and transformers' code has no linear layer {text_name}")
        shape = shapes.get(text_name) or (stored[0], stored[1])
        weight = checkpoint.weight(layer, shape)
        weights_in_dtype = torch.empty(shape, dtype=dtype)
        write(weight, weights_in_dtype)
        found.tensors[f"{layer}.weight"] = weights_in_dtype
        if text_name in shapes and isinstance(weight, Quantized):
            found.quantized[text_name] = weight
    return found


def _shapes(own: OwnConfig) -> dict[str, tuple[int, int]]:
    """Returns the shapes `[out, in]` of the linear layers by name."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(own.config)
    linears = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    return {name: (module.out_features, module.in_features) for name, module in linears.items()}


def _text_name(layer: str) -> str:
    for pattern, place in TEXT_MODEL_PREFIXES.items():
        layer = re.sub(pattern, place, layer)
    return layer
