"""Qwen 2 and 3 with a mixture of experts: some layers may be dense; Qwen 2 has a shared expert."""

from collections.abc import Iterable
from typing import Any

from msgspec import structs

from engine.model.config import ExpertsMLP, HeadAttention, LayerConfig
from engine.model.families.family import ConfigFields, ModelFamily
from engine.model.families.reading import activation_of, checked, dense_mlp, head_attention, rope_of, windows_of


def read_2(config: Any, name: str) -> ConfigFields:
    rope, bias = rope_of(config, name), bool(config.qkv_bias)
    experts = structs.replace(
        _experts(config, name), shared=int(config.shared_expert_intermediate_size), shared_gate=True
    )
    attentions = (head_attention(config, name, rope, window=window, bias=bias) for window in windows_of(config, name))
    return _fields(config, name, attentions, experts)


def read_3(config: Any, name: str) -> ConfigFields:
    bias, window = bool(config.attention_bias), int(config.sliding_window or 0)
    attention = head_attention(
        config, name, rope_of(config, name), window=window, bias=bias, output_bias=bias, norm="head"
    )
    return _fields(config, name, (attention,) * int(config.num_hidden_layers), _experts(config, name))


def _experts(config: Any, name: str) -> ExpertsMLP:
    mlp = ExpertsMLP(
        experts=int(config.num_experts),
        used=int(config.num_experts_per_tok),
        intermediate=int(config.moe_intermediate_size),
        activation=activation_of(config, name),
        normalized=bool(config.norm_topk_prob),
    )
    return checked(mlp, name) if any(sparse_layers(config)) else mlp


def _fields(config: Any, name: str, attentions: Iterable[HeadAttention], experts: ExpertsMLP) -> ConfigFields:
    dense = dense_mlp(config, name)
    layers = zip(attentions, sparse_layers(config), strict=True)
    return {"layers": tuple(LayerConfig(attention, experts if sparse else dense) for attention, sparse in layers)}


def sparse_layers(config: Any) -> list[bool]:
    step, dense = int(config.decoder_sparse_step), set(config.mlp_only_layers)
    layers = range(int(config.num_hidden_layers))
    return [int(config.num_experts) > 0 and (layer + 1) % step == 0 and layer not in dense for layer in layers]


QWEN_2_MOE = ModelFamily(("Qwen2MoeForCausalLM",), read_2)
QWEN_3_MOE = ModelFamily(("Qwen3MoeForCausalLM",), read_3)
