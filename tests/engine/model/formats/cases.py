"""Makes small quantized models of several families, one for each way of quantizing, each with a twin of numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from tests.engine.model.formats.library import compress
from tests.engine.model.formats.writers import Written, awq, fp8, gptq, nvfp4, rewrite
from tests.variants import VARIANTS

FP8 = {"num_bits": 8, "type": "float"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}
Case = tuple[str, dict[str, Any], Callable[[str, Tensor], Written]]

WRITTEN: dict[str, Case] = {
    "awq": ("llama-biases", AWQ, lambda name, weight: awq(weight, 64)),
    "awq, fused": ("phi3", AWQ, lambda name, weight: awq(weight, 64)),
    "awq, experts": ("mixtral", AWQ, lambda name, weight: awq(weight, 64)),
    "gptq, desc_act": (
        "granite",  # its scale of what is added to the residual multiplies weights
        GPTQ | {"desc_act": True},
        lambda name, weight: gptq(weight, 4, 32, version=1, desc_act=True),
    ),
    "gptq, 8 bits, experts": (
        "qwen3-moe",  # experts have 40 inputs: a group and a quarter
        GPTQ | {"bits": 8, "checkpoint_format": "gptq_v2"},
        lambda name, weight: gptq(weight, 8, 32, version=2),
    ),
    "gptq, columns, latent": (
        "deepseek-v2",
        GPTQ | {"group_size": -1, "sym": True},
        lambda name, weight: gptq(weight, 4, -1, version=1, symmetric=True),
    ),
    "fp8, blocks, latent": (
        "deepseek-v3",
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        lambda name, weight: fp8(weight, (128, 128)),
    ),
    "modelopt, nvfp4": (
        "qwen3",
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        lambda name, weight: nvfp4(weight) if "mlp" in name else fp8(weight, None, "weight_scale"),
    ),
    "auto-round": (
        "mistral",
        {
            "quant_method": "auto-round",
            "packing_format": "auto_round:auto_gptq",
            "bits": 4,
            "group_size": 32,
            "sym": True,
            "data_type": "int",
            "extra_config": {".*v_proj.*": {"bits": 8}, "model.layers.0.mlp.up_proj": {"group_size": 64}},
        },
        lambda name, weight: gptq(
            weight,
            8 if "v_proj" in name else 4,
            64 if name == "model.layers.0.mlp.up_proj" else 32,
            version=1,
            symmetric=True,
        ),
    ),
    "fp8": ("glm4", {"quant_method": "fp8"}, lambda name, weight: fp8(weight, None, "weight_scale")),
}
COMPRESSED = "compressed-tensors"
CASES = (COMPRESSED, *WRITTEN)


def build(case: str, directory: Path, plain: Callable[[Path, Any], Path]) -> tuple[Path, Path]:
    """Makes a quantized model, and its twin of numbers, from what `plain` makes of a config."""
    if case == COMPRESSED:
        twin = plain(directory / "twin", VARIANTS["llama"]())
        return compressed(twin, directory / "model"), twin
    variant, config, write = WRITTEN[case]
    twin = plain(directory / "twin", VARIANTS[variant]())
    return rewrite(twin, directory / "model", config, write), twin


def compressed(twin: Path, directory: Path) -> Path:
    """Has the library compress a model in three formats. The last layer is left out."""
    weights: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
        "queries": ("re:.*self_attn.[qkv]_proj", {"num_bits": 4, "symmetric": False, "group_size": 32}, None),
        "outputs": ("re:.*o_proj", FP8 | {"strategy": "block", "block_structure": [64, 64]}, FP8 | {"dynamic": True}),
        "others": ("Linear", {"num_bits": 8, "strategy": "channel"}, {"num_bits": 8, "dynamic": True}),
    }
    groups = {
        name: {"targets": [target], "weights": each, "input_activations": activations}
        for name, (target, each, activations) in weights.items()
    }
    return compress(twin, directory, groups, ["lm_head", "re:.*layers.3.*"])
