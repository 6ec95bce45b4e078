"""OLMo 2 and 3, with norms after attention and MLP instead of before, and OLMoE.

All normalize queries and keys across all heads (https://arxiv.org/abs/2501.00656). OLMo 3 has a window in most layers,
whose rotation is not scaled. OLMoE (https://arxiv.org/abs/2409.02060) is a mixture of experts.
"""

from typing import Any

from contracts.errors import OptionError
from engine.model.config import ExpertsMLP, LayerConfig
from engine.model.families.family import ConfigFields, LayerNames, ModelFamily, ModelNames
from engine.model.families.reading import (
    activation_of,
    checked,
    dense_mlp,
    head_attention,
    kinds_of,
    rope_of,
    windows_of,
)

POST_NORM_NAMES = LayerNames(
    attention_norm=None,
    attention_post_norm="post_attention_layernorm",
    mlp_norm=None,
    mlp_post_norm="post_feedforward_layernorm",
)


def read_2(config: Any, name: str) -> ConfigFields:
    layers = int(config.num_hidden_layers)
    return _fields(config, name, ("full_attention",) * layers, (0,) * layers)


def read_3(config: Any, name: str) -> ConfigFields:
    return _fields(config, name, kinds_of(config, name), windows_of(config, name))


def _fields(config: Any, name: str, kinds: tuple[str, ...], windows: tuple[int, ...]) -> ConfigFields:
    bias = bool(config.attention_bias)
    mlp = dense_mlp(config, name)
    attentions = (
        head_attention(
            config, name, rope_of(config, name, kind), window=window, bias=bias, output_bias=bias, norm="all"
        )
        for kind, window in zip(kinds, windows, strict=True)
    )
    return {"layers": tuple(LayerConfig(attention, mlp) for attention in attentions)}


def read_moe(config: Any, name: str) -> ConfigFields:
    if config.clip_qkv is not None:
        raise OptionError(f"{name}: clip_qkv {config.clip_qkv} is not supported; supported: null")
    bias = bool(config.attention_bias)
    attention = head_attention(config, name, rope_of(config, name), bias=bias, output_bias=bias, norm="all")
    mlp = ExpertsMLP(
        experts=int(config.num_experts),
        used=int(config.num_experts_per_tok),
        intermediate=int(config.intermediate_size),
        activation=activation_of(config, name),
        normalized=bool(config.norm_topk_prob),
    )
    return {"layers": (LayerConfig(attention, checked(mlp, name)),) * int(config.num_hidden_layers)}


OLMO_2 = ModelFamily(("Olmo2ForCausalLM",), read_2, ModelNames(of_layer=POST_NORM_NAMES))
OLMO_3 = ModelFamily(("Olmo3ForCausalLM",), read_3, ModelNames(of_layer=POST_NORM_NAMES))
OLMO_E = ModelFamily(("OlmoeForCausalLM",), read_moe)
