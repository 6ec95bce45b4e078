"""Writes checkpoints of plain numbers that stand beside quantized ones."""

import re
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from contracts.kinds import Quantization
from engine.model.quantization import of_head, quantized
from engine.model.quantized import dequantized

QUANTIZED = re.compile(r"(proj|proj_with_mqa|experts\.\d+\.w\d)\.weight$")


def dequantized_twin(directory: Path, target: Path, form: Quantization) -> Path:
    """Copies a checkpoint; the copy's linear layers hold the numbers that weights stand for which are quantized so.

    Routers stay, and what makes keys and values of latent vectors.
    """
    shutil.copytree(directory, target)
    tensors = load_file(target / "model.safetensors")
    for name, tensor in tensors.items():
        if name == "lm_head.weight":
            tensors[name] = dequantized(quantized(tensor, of_head(form)))
        elif QUANTIZED.search(name) and "kv_b_proj" not in name:
            tensors[name] = dequantized(quantized(tensor, form))
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target
