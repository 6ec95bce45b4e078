"""Configs as published checkpoints have them are read, with all that they say of things that decide nothing here.

Each is written after the documents, or the code, of what makes such checkpoints; none is copied from one.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.errors import ModelError
from engine.model.formats.compressed_tensors import CompressedTensors
from engine.model.formats.gptq import Gptq
from engine.model.formats.registry import format_of
from tests.engine.backends.native.measures import random
from tests.engine.model.formats.stored import NAME, checkpoint

FP8_DYNAMIC: dict[str, Any] = {
    "config_groups": {
        "group_0": {
            "input_activations": {"dynamic": True, "num_bits": 8, "strategy": "token", "type": "float"},
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": None,
                "num_bits": 8,
                "observer": "minmax",
                "observer_kwargs": {},
                "strategy": "channel",
                "symmetric": True,
                "type": "float",
            },
        }
    },
    "format": "float-quantized",
    "global_compression_ratio": 1.24,
    "ignore": ["lm_head", "re:.*vision_tower.*"],
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False},
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
    "sparsity_config": {},
    "transform_config": {},
    "version": "0.13.0",
}
GPTQ: dict[str, Any] = {
    "bits": 4,
    "checkpoint_format": "gptq",
    "damp_percent": 0.01,
    "desc_act": False,
    "group_size": 128,
    "lm_head": False,
    "meta": {"quantizer": ["gptqmodel:1.4.0"], "mse": 0.0, "static_groups": False},
    "modules_in_block_to_quantize": [["self_attn.k_proj", "self_attn.v_proj"], ["mlp.down_proj"]],
    "pack_dtype": "int32",
    "quant_method": "gptq",
    "static_groups": False,
    "sym": True,
    "true_sequential": True,
}
AWQ: dict[str, Any] = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": ["visual", "mlp.gate"],
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
FP8: dict[str, Any] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "ignored_layers": ["model.layers.0.mlp.gate"],
    "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"],
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
NVFP4: dict[str, Any] = {
    "config_groups": {
        "group_0": {
            "input_activations": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
            "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
            "targets": ["Linear"],
        }
    },
    "ignore": ["lm_head", "model.layers.3.self_attn*"],
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.37.0"},
    "quant_algo": "NVFP4",
    "quant_library": "modelopt",
    "quant_method": "modelopt",
}
AUTO_ROUND: dict[str, Any] = {
    "act_bits": 16,
    "autoround_version": "0.9.1",
    "batch_size": 8,
    "bits": 4,
    "block_name_to_quantize": "model.language_model.layers",
    "data_type": "int",
    "enable_quanted_input": True,
    "group_size": 128,
    "iters": 200,
    "low_gpu_mem_usage": True,
    "packing_format": "auto_round:auto_gptq",
    "quant_method": "auto-round",
    "sym": True,
    "extra_config": {
        "model.language_model.layers.1.mlp.gate": {"bits": 16, "data_type": "float"},
        ".*self_attn\\.o_proj.*": {"bits": 8, "group_size": 32},
    },
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "LLM Compressor, FP8 dynamic": FP8_DYNAMIC,
    "GPTQModel": GPTQ,
    "GPTQModel, with a quantized head": GPTQ | {"lm_head": True, "dynamic": {"-:.*down_proj": {}}},
    "AutoGPTQ, by Optimum": {
        **{"bits": 4, "group_size": 128, "desc_act": True, "quant_method": "gptq", "dataset": "c4"},
        **{"exllama_config": {"version": 1}, "tokenizer": None, "use_cuda_fp16": False, "batch_size": 1},
    },
    "AutoAWQ": AWQ,
    "AutoAWQ, by transformers": AWQ | {"backend": "autoawq", "do_fuse": False, "exllama_config": None},
    "DeepSeek, fp8": {
        **{"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"},
        **{"weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
    },
    "Qwen, fp8": FP8,
    "Mistral, fp8 in one": {
        **{"activation_scheme": "static", "dequantize": False, "quant_method": "fp8"},
        **{"modules_to_not_convert": ["model.vision_tower", "lm_head"], "weight_block_size": None},
    },
    "Model Optimizer, NVFP4": NVFP4,
    "Model Optimizer, fp8 without a method": {
        **{"ignore": ["lm_head"], "kv_cache_scheme": "FP8", "quant_algo": "FP8", "quant_library": "modelopt"},
    },
    "Model Optimizer, KV alone": {"quant_algo": None, "kv_cache_quant_algo": "FP8", "quant_method": "modelopt"},
    "Model Optimizer, mixed": {
        "quant_algo": "MIXED_PRECISION",
        "quant_method": "modelopt",
        "quantized_layers": {
            "model.language_model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
            "model.language_model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
        },
    },
    "FBGEMM": {
        **{"activation_scale_ub": 1200.0, "quant_method": "fbgemm_fp8"},
        **{"modules_to_not_convert": ["lm_head", "model.layers.0.self_attn.q_proj"]},
    },
    "AutoRound": AUTO_ROUND,
    "AutoRound, asymmetric": AUTO_ROUND | {"packing_format": "auto_round:auto_awq", "sym": False, "extra_config": None},
    "AutoRound, in GPTQ's own words": GPTQ | {"provider": "auto-round", "autoround_version": "0.5.1", "iters": 200},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read(name: str) -> None:
    found = format_of({"quantization_config": PUBLISHED[name]}, "m")
    assert found.settings() and found.weights_per_element("model.layers.0.mlp.up_proj.weight", "BF16") == (None, 1)


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model."])
def test_layers_of_a_part_are_found_by_each_of_their_names(prefix: str) -> None:
    """Shows it of GPTQ and of compressed-tensors, whose configs name modules, which files may call otherwise."""
    found = format_of({"quantization_config": AUTO_ROUND}, "m")
    assert isinstance(found, Gptq)
    assert [found.packing_of(f"{prefix}layers.1.{layer}").bits for layer in ("self_attn.o_proj", "mlp.up_proj")] == [
        8,
        4,
    ]
    weights = FP8_DYNAMIC["config_groups"]["group_0"]["weights"]
    named = {
        "a": {"targets": ["model.language_model.layers.1.mlp.up_proj"], "weights": weights | {"strategy": "tensor"}},
        "b": {"targets": [r"re:model\.language_model\.layers\.\d+\.mlp\.down_proj"], "weights": weights},
    }
    groups = format_of({"quantization_config": FP8_DYNAMIC | {"config_groups": named}}, "m")
    assert isinstance(groups, CompressedTensors)
    layers = (f"{prefix}layers.1.mlp.up_proj", f"{prefix}layers.22.mlp.down_proj")
    assert [groups.scheme_of(layer).strategy for layer in layers] == ["tensor", "channel"]
    with pytest.raises(ModelError, match="no target of quantization_config names it"):
        groups.scheme_of(f"{prefix}layers.2.mlp.up_proj")


@pytest.mark.parametrize(
    "config",
    [
        AWQ | {"modules_to_not_convert": ["up_proj"]},
        FP8,
        FP8_DYNAMIC | {"ignore": ["re:.*up_proj"]},
        GPTQ | {"dynamic": {r"-:.*\.up_proj": {}}},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
    ],
    ids=lambda config: config["quant_method"],
)
def test_layers_that_are_left_out_are_numbers(config: dict[str, Any], tmp_path: Path) -> None:
    weight = random(16, 64, seed=1)
    opened = checkpoint(tmp_path, config, {"weight": weight})
    found = opened.weight(NAME, (16, 64))
    assert isinstance(found, Tensor) and torch.equal(found, weight)
    assert opened.parameters() == {None: 16 * 64}
