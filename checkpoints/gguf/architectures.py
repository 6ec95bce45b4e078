"""Lists the architectures of GGUF files that are served, and what tells their files apart: all of it is data.

Facts are from llama.cpp's `convert_hf_to_gguf.py`, which writes such files, and from its readers.
"""

from typing import Any

from msgspec import Struct, field

ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
DENSE = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
LAYER = ATTENTION | DENSE | {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Norms of layers that have one before and behind each of their parts."""
EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
OF_EXPERTS = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"} | {
    "moe_intermediate_size": "expert_feed_forward_length"
}


class Architecture(Struct, frozen=True):
    """Describes one architecture in transformers' words."""

    name: str  # of the class
    model_type: str
    names: dict[str, str] = field(default_factory=LAYER.copy)  # of a layer's tensors, by GGUF's; {}: an expert's number
    permuted: bool = False  # rows of Q and K are in pairs of neighbours, not in halves
    norm_offset: float = 0.0  # what the file has added to the weights of norms
    keys: dict[str, str] = {}  # fields of the config, by which metadata key of the architecture has them
    optional: dict[str, str] = {}  # the same, where a file may lack them
    fields: dict[str, Any] = {}  # of every model


GELU = {"hidden_activation": "gelu_pytorch_tanh"}

ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", permuted=True),
    "llama with experts": Architecture(
        "MixtralForCausalLM",
        "mixtral",
        LAYER | MIXTRAL,
        permuted=True,
        keys={"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
        fields={"sliding_window": None},
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        LAYER | EXPERTS,
        keys=OF_EXPERTS | {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        fields={"norm_topk_prob": False},
    ),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM", "qwen3_moe", LAYER | EXPERTS, keys=OF_EXPERTS, fields={"norm_topk_prob": True}
    ),
    "gemma": Architecture("GemmaForCausalLM", "gemma", norm_offset=1.0, fields=GELU),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        "gemma2",
        LAYER | AROUND,
        norm_offset=1.0,
        keys={"sliding_window": "attention.sliding_window"},
        optional={"attn_logit_softcapping": "attn_logit_softcapping"}
        | {"final_logit_softcapping": "final_logit_softcapping"},
        fields=GELU,
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        LAYER | AROUND,
        norm_offset=1.0,
        keys={"sliding_window": "attention.sliding_window"},
        optional={"final_logit_softcapping": "final_logit_softcapping"},
        fields=GELU,
    ),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        "phi3",
        LAYER | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        optional={"sliding_window": "attention.sliding_window"},
    ),
    "granite": Architecture(
        "GraniteForCausalLM",
        "granite",
        permuted=True,
        optional={
            "attention_multiplier": "attention.scale",
            "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", permuted=True, fields={"use_sliding_window": False}),
    "olmo2": Architecture(
        "Olmo2ForCausalLM", "olmo2", ATTENTION | DENSE | {key: AROUND[key] for key in AROUND if key != "ffn_norm"}
    ),
}
"""By `general.architecture`; Mixtral, which has Llama's, by its experts."""
