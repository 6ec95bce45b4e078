"""Writes GGUF files as llama.cpp's own library does: names, types and bytes are of the `gguf` package.

The order of Q's and K's rows, and what is added to norms, are those of llama.cpp's `convert_hf_to_gguf.py`.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

F32 = gguf.GGMLQuantizationType.F32
PERMUTED = ("llama", "granite", "smollm3")
ADDED_ONE = ("gemma", "gemma2", "gemma3")
ROUTERS = ("mlp.gate.weight", "moe.gate.weight", "mlp.router.weight")
KindOf = Callable[[str], Any]
"""Returns the type that the matrix of this name is stored as."""


def interleaved(weight: Any, heads: int) -> Any:
    """Reorders each head's rows from halves to neighbours."""
    return weight.reshape(heads, 2, len(weight) // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


SCALE_BYTES = {
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)},
}
"""Where a type's blocks have fp16 numbers; others have one at the beginning."""


def blocks_of(kind: Any, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Makes random valid blocks of a type, uint8 `[out, bytes of a row]`: its scales are small numbers."""
    generator = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    scale = generator.uniform(0.5, 2.0, (*blocks.shape[:-1], 2)).astype(np.float16) / np.float16(2048)
    if kind.name == "MXFP4":  # a power of two
        blocks[..., 0] = generator.integers(112, 120, blocks.shape[:-1])
    elif kind.name == "IQ1_M":  # four bits of the scale in each of four words
        digits = scale[..., :1].view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) & 15
        blocks[..., 49::2] = blocks[..., 49::2] & 15 | (digits << 4).astype(np.uint8)
    else:
        for which, at in enumerate(SCALE_BYTES.get(kind.name, (0,))):
            blocks[..., at : at + 2] = scale[..., which : which + 1].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def write_gguf(
    directory: Path,
    target: Path,
    architecture: str,
    stored: KindOf = lambda name: F32,
    change: Callable[[Any], None] = lambda writer: None,
    tokenizer: bool = True,
) -> Path:
    config = json.loads((directory / "config.json").read_text())
    tensors: dict[str, Tensor] = {}
    for path in directory.glob("*.safetensors"):
        tensors |= load_file(path)
    writer = gguf.GGUFWriter(target, architecture)
    add_config(writer, config)
    if tokenizer:
        add_words(writer, config["vocab_size"])
    change(writer)
    number = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    for name, values in _stacked(separated(tensors)).items():
        values = _converted(name, values.float().numpy(), architecture, config)
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        kind = stored(name) if values.ndim > 1 and not name.endswith((*ROUTERS, "bias")) else F32
        writer.add_tensor(theirs, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def dequantized(original: Path, directory: Path, stored: KindOf) -> Path:
    shutil.copytree(original, directory)
    tensors = separated(load_file(original / "model.safetensors"))
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and not name.endswith(ROUTERS):
            blocks = gguf.quants.quantize(tensor.numpy(), stored(name))
            tensors[name] = torch.from_numpy(gguf.quants.dequantize(blocks, stored(name)))
    save_file(_together(tensors), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


EXPERT_REGEX = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")
"""An expert's tensor, as most families name it."""


def separated(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Divides gpt-oss' tensors of all experts, whose gates and ups alternate, into tensors of each expert."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".")
        if name.endswith("sinks"):
            found[f"{name}.weight"] = tensor
        elif not stem.endswith(".experts"):
            found[name] = tensor
        else:
            suffix = "bias" if part.endswith("_bias") else "weight"
            for expert, each in enumerate(tensor if suffix == "bias" else tensor.transpose(1, 2)):
                both = {"gate": each[::2], "up": each[1::2]} if part.startswith("gate_up") else {"down": each}
                found |= {f"{stem}.{expert}.{key}_proj.{suffix}": value.contiguous() for key, value in both.items()}
    return found


def _together(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Puts together what `separated` has divided."""
    if not any(name.endswith("sinks.weight") for name in tensors):
        return tensors
    found = {name.removesuffix(".weight") if "sinks" in name else name: value for name, value in tensors.items()}
    experts = {match: found.pop(match[0]) for match in [EXPERT_REGEX.fullmatch(name) for name in tensors] if match}
    for match, value in experts.items():
        stem, number, part, suffix = match.groups()
        if part == "gate":
            value = torch.stack((value, tensors[f"{stem}.{number}.up_proj.{suffix}"]), 1).flatten(0, 1)
        if part != "up":
            name = f"{stem}.{'gate_up' if part == 'gate' else part}_proj{'_bias' if suffix == 'bias' else ''}"
            value = value if suffix == "bias" else value.t()
            found[name] = torch.cat([found[name], value[None]]) if name in found else value[None]
    return {name: tensor.contiguous() for name, tensor in found.items()}


def add_words(writer: Any, count: int) -> None:
    """Adds a vocabulary whose token 12 is spelled ` w12`, as SentencePiece has it, so that text says which came."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"▁w{token}" for token in range(count)])
    writer.add_token_scores([-1.0] * count)
    writer.add_token_types([1] * count)


def _converted(name: str, values: Any, architecture: str, config: dict[str, Any]) -> Any:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    part = name.split(".")[-2]
    if architecture in PERMUTED and part in heads:
        return interleaved(values, heads[part])
    return values + 1 if architecture in ADDED_ONE and name.endswith("norm.weight") else values


def _stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stacks what experts have each, in the order of their numbers, under the name that llama.cpp's converter uses."""
    found: dict[str, Tensor] = {}
    parts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name):
            parts.setdefault(f"{match[1]}.{match[3]}".replace("block_sparse_moe", "mlp"), {})[int(match[2])] = tensor
        else:
            found[name] = tensor
    theirs = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    for name, each in parts.items():
        stem, kind, ending = name.rsplit(".", 2)
        found[f"{stem}.{theirs.get(kind, kind)}.{ending}"] = torch.stack([each[index] for index in sorted(each)])
    return found


def add_config(writer: Any, config: dict[str, Any]) -> None:
    heads, rope = config["num_attention_heads"], config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(int(head_dim * full.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(full["rope_theta"])
    if full["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(full["rope_type"]))
        writer.add_rope_scaling_factor(full["factor"])
    if "original_max_position_embeddings" in full:
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    options: dict[str, Callable[[Any], None]] = {
        "sliding_window": writer.add_sliding_window,
        "num_local_experts": writer.add_expert_count,
        "num_experts": writer.add_expert_count,
        "num_experts_per_tok": writer.add_expert_used_count,
        "moe_intermediate_size": writer.add_expert_feed_forward_length,
        "shared_expert_intermediate_size": writer.add_expert_shared_feed_forward_length,
        "attn_logit_softcapping": writer.add_attn_logit_softcapping,
        "final_logit_softcapping": writer.add_final_logit_softcapping,
        "attention_multiplier": writer.add_attention_scale,
        "embedding_multiplier": writer.add_embedding_scale,
        "residual_multiplier": writer.add_residual_scale,
        "logits_scaling": writer.add_logit_scale,
    }
    for field, add in options.items():
        if config.get(field):
            add(config[field])
