"""Llama 1 to 3: full attention with rotation in every layer.

What `engine.model.transformer` computes for such a config, for tokens t at positions p:

    x = embedding[t]
    for each layer:
        a = rms_norm(x)                              input_layernorm
        q, k, v = Wq a, Wk a, Wv a                   q_proj, k_proj, v_proj as one product
        q, k = rotate(q, p), rotate(k, p)            rope.py
        KV pool[p] = k, v                            attention step: store
        x += Wo softmax(q K^T / sqrt(head_dim)) V    attention step: attend; o_proj
        b = rms_norm(x)                              post_attention_layernorm
        x += Wdown (silu(Wgate b) * Wup b)           gate_proj and up_proj as one product; down_proj
    logits = Whead rms_norm(x)                       norm, lm_head
"""

from typing import Any

from engine.model.config import LayerConfig
from engine.model.families.family import ConfigFields, ModelFamily
from engine.model.families.reading import dense_mlp, head_attention, rope_of


def read(config: Any, name: str) -> ConfigFields:
    bias = bool(config.attention_bias)
    attention = head_attention(config, name, rope_of(config, name), bias=bias, output_bias=bias)
    mlp = dense_mlp(config, name, bool(config.mlp_bias))
    return {"layers": (LayerConfig(attention, mlp),) * int(config.num_hidden_layers)}


LLAMA_FAMILY = ModelFamily(("LlamaForCausalLM",), read)
