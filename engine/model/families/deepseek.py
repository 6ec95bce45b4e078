"""DeepSeek V2, V2-Lite, V3, R1 and models of the same architecture, such as Kimi K2.

Latent attention; a mixture of experts in all layers except the first few.
"""

import math
from typing import Any

from contracts.errors import ModelError, OptionError
from engine.model.config import DenseMLP, ExpertsMLP, LatentAttention, LayerConfig
from engine.model.families.family import ConfigFields, LayerNames, ModelFamily, ModelNames
from engine.model.families.reading import activation_of, checked, dense_mlp, rope_of


def read_2(config: Any, name: str) -> ConfigFields:
    """Reads V2, where the score of a group of experts is its best expert's."""
    method = config.topk_method
    if method not in ("greedy", "group_limited_greedy"):
        raise ModelError(f"{name}: topk_method {method} is not supported; supported: greedy, group_limited_greedy")
    if config.norm_topk_prob:
        raise ModelError(f"{name}: norm_topk_prob is not supported: transformers' DeepSeek V2 has no such division")
    experts = _experts(config, name)
    if method == "greedy":
        return _fields(config, name, ExpertsMLP(**experts), bias=bool(config.mlp_bias))
    grouped = ExpertsMLP(**experts, groups=int(config.n_group or 0), groups_used=int(config.topk_group or 0))
    return _fields(config, name, grouped, bias=bool(config.mlp_bias))


def read_3(config: Any, name: str) -> ConfigFields:
    """Reads V3, with sigmoid scores and a correction that is added only to choose experts."""
    for key, supported in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc"), ("moe_layer_freq", 1)):
        value = getattr(config, key, supported)
        if value != supported:
            raise ModelError(f"{name}: {key} {value} is not supported; supported: {supported}")
    experts = ExpertsMLP(
        **_experts(config, name),
        scores="sigmoid",
        normalized=bool(config.norm_topk_prob),
        correction=True,
        groups=int(config.n_group or 1),
        groups_used=int(config.topk_group or 1),
        group_score="best_two",
    )
    left_out = int(config.num_nextn_predict_layers or 0)
    fields = _fields(config, name, experts, interleaved=bool(config.rope_interleave))
    is_dense = int(config.first_k_dense_replace) > int(config.num_hidden_layers)
    mlp = dense_mlp(config, name) if is_dense else experts  # checked where it is used
    next_layer = LayerConfig(_attention(config, name, bool(config.rope_interleave)), mlp) if left_out else None
    return fields | {"left_out": left_out, "next_layer": next_layer}


def _experts(config: Any, name: str) -> dict[str, Any]:
    return {
        "experts": int(config.n_routed_experts or 0),
        "used": int(config.num_experts_per_tok or 0),
        "intermediate": int(config.moe_intermediate_size),
        "activation": activation_of(config, name),
        "scale": float(config.routed_scaling_factor),
        "shared": int(config.moe_intermediate_size) * int(config.n_shared_experts or 0),
    }


def _fields(
    config: Any, name: str, experts: ExpertsMLP, *, bias: bool = False, interleaved: bool = True
) -> ConfigFields:
    layers, dense = int(config.num_hidden_layers), int(config.first_k_dense_replace)
    attention = _attention(config, name, interleaved)
    mlps: list[DenseMLP | ExpertsMLP] = [dense_mlp(config, name, bias)] * min(dense, layers)
    if dense < layers:
        if bias:
            raise OptionError(f"{name}: mlp_bias is not supported where layers have experts")
        mlps += [checked(experts, name)] * (layers - dense)
    return {"layers": tuple(LayerConfig(attention, mlp) for mlp in mlps)}


def _attention(config: Any, name: str, interleaved: bool) -> LatentAttention:
    heads, rank = int(config.num_attention_heads), int(config.q_lora_rank or 0)
    nope, rotated = int(config.qk_nope_head_dim), int(config.qk_rope_head_dim)
    if int(config.num_key_value_heads) != heads:
        raise ModelError(
            f"{name}: {config.num_key_value_heads} KV heads for {heads} heads: latent attention has as many"
        )
    if config.attention_bias and not rank:
        raise OptionError(f"{name}: attention_bias is not supported without q_lora_rank")
    rope = rope_of(config, name, dim=rotated, interleaved=interleaved)
    scale = (nope + rotated) ** -0.5
    all_dims = float((config.rope_parameters or {}).get("mscale_all_dim") or 0)
    if rope.type != "default" and rope.factor > 1:
        scale *= (1 + 0.1 * all_dims * math.log(rope.factor)) ** 2
    return LatentAttention(
        heads=heads,
        query_rank=rank,
        latent_rank=int(config.kv_lora_rank),
        rope_dim=rotated,
        nope_dim=nope,
        value_dim=int(config.v_head_dim),
        scale=scale,
        rope=rope,
        bias=bool(config.attention_bias),
    )


DEEPSEEK_NAMES = ModelNames(
    of_layer=LayerNames(
        shared_gate_up=("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
        shared_down="mlp.shared_experts.down_proj",
    )
)
DEEPSEEK_V2 = ModelFamily(("DeepseekV2ForCausalLM",), read_2, DEEPSEEK_NAMES)
DEEPSEEK_V3 = ModelFamily(("DeepseekV3ForCausalLM",), read_3, DEEPSEEK_NAMES)
