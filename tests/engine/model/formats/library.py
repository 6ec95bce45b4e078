"""Has the library of compressed-tensors quantize weights and models, with scales from a weight's least and most."""

from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationStrategy,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.engine.model.formats.writers import copy_beside


def parameters(weight: Tensor, args: QuantizationArgs) -> dict[str, Tensor]:
    """Returns the scales and zeros that the library computes, with bf16's digits, as most checkpoints have them."""
    sizes = {
        "tensor": tuple(weight.shape),
        "channel": (1, weight.shape[1]),
        "group": (1, args.group_size),
        "tensor_group": (1, args.group_size),
        "block": tuple(args.block_structure or ()),
    }
    rows, columns = sizes[QuantizationStrategy(args.strategy).value]
    blocks = [row.split(columns, 1) for row in weight.split(rows)]
    least = torch.stack([torch.stack([part.min() for part in row]) for row in blocks])
    most = torch.stack([torch.stack([part.max() for part in row]) for row in blocks])
    found: dict[str, Tensor] = {}
    if args.strategy == "tensor_group":
        found["weight_global_scale"] = (448 * 6 / weight.abs().max()).view(1)
    if args.strategy == "tensor":
        least, most = least.view(1), most.view(1)
    scales, zeros = calculate_qparams(least, most, args, global_scale=found.get("weight_global_scale"))
    found["weight_scale"] = scales.float() if "weight_global_scale" in found else scales.bfloat16().float()
    return found if args.symmetric else found | {"weight_zero_point": zeros}


@torch.no_grad()
def compress(plain: Path, directory: Path, groups: dict[str, Any], ignore: list[str]) -> Path:
    """Makes `directory` of the model in `plain`, which becomes the twin: it has what the library decompresses again."""
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=ignore))
    layers = {name: layer for name, layer in model.named_modules() if hasattr(layer, "weight_scale")}
    for layer in layers.values():
        for name, tensor in parameters(layer.weight, layer.quantization_scheme.weights).items():
            assert getattr(layer, name).shape == tensor.shape
            getattr(layer, name).copy_(tensor)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(directory)
    compressor.update_config(str(directory))
    compressor.decompress_model(model)
    tensors = load_file(plain / "model.safetensors")
    assert all(f"{name}.weight" in tensors for name in layers)
    tensors |= {f"{name}.weight": layer.weight.float().contiguous() for name, layer in layers.items()}
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    copy_beside(plain, directory)
    return directory
