"""Writes a Llama or Mixtral of Hugging Face as GGUF: `python -m benchmarks.peers.runners.gguf_of MODEL FILE FORMAT`.

In llama.cpp's own environment. The file has no tokenizer, as `benchmarks.peers` sends token ids. Names, formats and the
order of the rows of Q and K are those of llama.cpp's own `convert_hf_to_gguf.py`; experts are one tensor. With `int4`
(Q4_0) the embedding, which may also be the head, and the head are Q8_0: llama.cpp's own tool makes them Q6_K.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

FORMATS = {
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "fp32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "int8": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "int4": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}
ENDS = {"int4": gguf.GGMLQuantizationType.Q8_0}
"""Format of embedding and head where it differs."""
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
EXPERTS = {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}


def tensors(directory: Path) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        data = np.memmap(path, np.uint8, "r")
        size = int(data[:8].view(np.uint64)[0])
        header = json.loads(data[8 : 8 + size].tobytes())
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = (8 + size + at for at in entry["data_offsets"])
            if entry["dtype"] not in ("BF16", "F32"):
                raise SystemExit(f"{path}: {name} is {entry['dtype']}; BF16 and F32 are supported")
            found[name] = partial(read, data[begin:end], entry["dtype"], entry["shape"])
    return found


def read(part: Any, form: str, shape: list[int]) -> Any:
    if form == "F32":
        return part.copy().view(np.float32).reshape(shape)
    return (part.copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)


def name_of(name: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in whole:
        return f"{whole[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{LAYER[rest]}.{kind}"


def interleaved(weight: Any, heads: int) -> Any:
    rows = weight.shape[0] // heads
    return weight.reshape(heads, 2, rows // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def main() -> None:
    directory, target, form = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    config = json.loads((directory / "config.json").read_text())
    stored, file_type = FORMATS[form]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config.get("rope_parameters") or config
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    head = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(file_type)
    found, experts = tensors(directory), config.get("num_local_experts", 0)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        for layer in range(config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}.block_sparse_moe.experts"
            for name, theirs in EXPERTS.items():
                each = [found.pop(f"{prefix}.{expert}.{name}.weight")() for expert in range(experts)]
                values = gguf.quants.quantize(np.stack(each), stored)
                writer.add_tensor(f"blk.{layer}.{theirs}.weight", values, raw_dtype=stored)
    for name, values in ((name, reading()) for name, reading in found.items()):
        if name.endswith("q_proj.weight"):
            values = interleaved(values, heads)
        elif name.endswith("k_proj.weight"):
            values = interleaved(values, kv_heads)
        if values.ndim == 1 or name.endswith("block_sparse_moe.gate.weight"):  # norms and routers
            writer.add_tensor(name_of(name), values)
        else:
            ends = name_of(name) in ("token_embd.weight", "output.weight")
            own = ENDS.get(form, stored) if ends else stored
            writer.add_tensor(name_of(name), gguf.quants.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
