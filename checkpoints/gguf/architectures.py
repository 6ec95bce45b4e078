"""The GGUF architectures that are served, as data: names of tensors, and fields of the config.

Source: llama.cpp's `convert_hf_to_gguf.py`, which writes such files, and its readers.
"""

from typing import Any

from msgspec import Struct, field

ATTENTION_TENSORS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
DENSE_MLP_TENSORS = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
LAYER_TENSORS = (
    ATTENTION_TENSORS | DENSE_MLP_TENSORS | {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
)
SANDWICH_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Norms of layers with a norm before and after attention and MLP."""
EXPERT_TENSORS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
MIXTRAL_TENSORS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
SINKS = "self_attn.sinks"
"""A tensor that Hugging Face's checkpoints have without `.weight`."""
MODEL_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
EXPERT_FIELDS = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"} | {
    "moe_intermediate_size": "expert_feed_forward_length"
}


class Architecture(Struct, frozen=True):
    """One architecture in transformers' terms."""

    name: str  # of transformers' class
    model_type: str
    tensors: dict[str, str] = field(default_factory=LAYER_TENSORS.copy)  # GGUF name -> name in a layer; {}: expert id
    permuted: bool = False  # rows of Q and K are in neighbouring pairs, not in halves
    norm_offset: float = 0.0  # added to the weights of norms in the file
    required_fields: dict[str, str] = {}  # config field -> metadata key
    optional_fields: dict[str, str] = {}
    constant_fields: dict[str, Any] = {}


GELU_FIELDS = {"hidden_activation": "gelu_pytorch_tanh"}

ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", permuted=True),
    "llama with experts": Architecture(
        "MixtralForCausalLM",
        "mixtral",
        LAYER_TENSORS | MIXTRAL_TENSORS,
        permuted=True,
        required_fields={"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
        constant_fields={"sliding_window": None},
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        LAYER_TENSORS | EXPERT_TENSORS,
        required_fields=EXPERT_FIELDS | {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        constant_fields={"norm_topk_prob": False},
    ),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        LAYER_TENSORS | EXPERT_TENSORS,
        required_fields=EXPERT_FIELDS,
        constant_fields={"norm_topk_prob": True},
    ),
    "gemma": Architecture("GemmaForCausalLM", "gemma", norm_offset=1.0, constant_fields=GELU_FIELDS),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        "gemma2",
        LAYER_TENSORS | SANDWICH_NORMS,
        norm_offset=1.0,
        required_fields={"sliding_window": "attention.sliding_window"},
        optional_fields={"attn_logit_softcapping": "attn_logit_softcapping"}
        | {"final_logit_softcapping": "final_logit_softcapping"},
        constant_fields=GELU_FIELDS,
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        LAYER_TENSORS | SANDWICH_NORMS,
        norm_offset=1.0,
        required_fields={"sliding_window": "attention.sliding_window"},
        optional_fields={"final_logit_softcapping": "final_logit_softcapping"},
        constant_fields=GELU_FIELDS,
    ),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        "phi3",
        LAYER_TENSORS | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        optional_fields={"sliding_window": "attention.sliding_window"},
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        "gpt_oss",
        LAYER_TENSORS
        | EXPERT_TENSORS
        | {"ffn_gate_inp": "mlp.router", "post_attention_norm": "post_attention_layernorm", "attn_sinks": SINKS},
        required_fields={
            "num_local_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "sliding_window": "attention.sliding_window",
        },
        optional_fields={"intermediate_size": "expert_feed_forward_length"},
    ),
    "granite": Architecture(
        "GraniteForCausalLM",
        "granite",
        permuted=True,
        optional_fields={
            "attention_multiplier": "attention.scale",
            "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
    ),
    "smollm3": Architecture(
        "SmolLM3ForCausalLM", "smollm3", permuted=True, constant_fields={"use_sliding_window": False}
    ),
    "olmo2": Architecture(
        "Olmo2ForCausalLM",
        "olmo2",
        ATTENTION_TENSORS
        | DENSE_MLP_TENSORS
        | {key: name for key, name in SANDWICH_NORMS.items() if key != "ffn_norm"},
    ),
}
"""Architectures by `general.architecture`. Mixtral shares Llama's name and is recognized by its experts."""
