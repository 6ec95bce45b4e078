"""Quantizes a checkpoint for vLLM: `python -m benchmarks.peers.runners.compressed_of MODEL DIRECTORY FORM`.

In vLLM's own environment, by the format's library, compressed-tensors: `int4` has symmetric groups of 32 inputs,
packed, and `int8` a scale for each output, with activations quantized per token. The head is not quantized, as vLLM has
no quantized head. Weights are rounded to nearest, since only speed is measured.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file

GROUP = 32
WEIGHTS: dict[str, dict[str, Any]] = {
    "int4": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP},
    "int8": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
}
INPUTS = {"int4": None, "int8": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}}
FORMATS = {"int4": "pack-quantized", "int8": "int-quantized"}


def stored(name: str, weight: torch.Tensor, form: str) -> dict[str, torch.Tensor]:
    outputs, inputs = weight.shape
    largest = 2 ** (WEIGHTS[form]["num_bits"] - 1) - 1
    groups = weight.float().view(outputs, -1, GROUP if form == "int4" else inputs)
    scales = groups.abs().amax(-1, keepdim=True) / largest
    values = (groups / scales).round().to(torch.int8).view(outputs, inputs)
    tensors = {f"{name}_scale": scales[..., 0].to(weight.dtype)}
    if form == "int8":
        return {**tensors, name: values}
    return {**tensors, f"{name}_packed": pack_to_int32(values, 4), f"{name}_shape": torch.tensor([outputs, inputs])}


def main() -> None:
    source, target, form = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    target.mkdir()
    config = json.loads((source / "config.json").read_text())
    scheme = {"targets": ["Linear"], "weights": WEIGHTS[form], "input_activations": INPUTS[form]}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": FORMATS[form],
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head", "re:.*block_sparse_moe.gate$"],
    }
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for path in source.glob("*token*.json"):
        shutil.copy(path, target)
    tensors: dict[str, torch.Tensor] = {}
    for path in source.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            is_plain = tensor.ndim != 2 or "embed_tokens" in name or "lm_head" in name or name.endswith("gate.weight")
            tensors.update({name: tensor} if is_plain else stored(name, tensor, form))
    save_file(tensors, target / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
