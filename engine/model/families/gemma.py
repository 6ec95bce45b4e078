"""Gemma 1 to 3: embeddings scaled by the root of the hidden size, norm weights stored minus 1, GELU gates.

Gemma 2 adds norms after attention and MLP, soft caps, and a window in every other layer. Gemma 3 normalizes queries and
keys in place of soft caps, and its windowed layers have another rotation (https://arxiv.org/abs/2503.19786).
"""

from typing import Any, Literal

from contracts.errors import ModelError
from engine.model.config import LayerConfig
from engine.model.families.family import ConfigFields, LayerNames, ModelFamily, ModelNames
from engine.model.families.reading import dense_mlp, head_attention, kinds_of, rope_of, windows_of

SANDWICH_NORM_NAMES = LayerNames(
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)
"""Layers with a norm before and after both attention and MLP."""


def read_1(config: Any, name: str) -> ConfigFields:
    layers, scale = int(config.num_hidden_layers), float(config.head_dim) ** -0.5
    return _fields(config, name, ("full_attention",) * layers, (0,) * layers, scale)


def read_2(config: Any, name: str) -> ConfigFields:
    scale, softcap = float(config.query_pre_attn_scalar) ** -0.5, float(config.attn_logit_softcapping or 0)
    found = _fields(config, name, kinds_of(config, name), windows_of(config, name), scale, softcap=softcap)
    return found | {"logits_softcap": float(config.final_logit_softcapping or 0)}


def read_3(config: Any, name: str) -> ConfigFields:
    if config.attn_logit_softcapping:
        raise ModelError(f"{name}: attn_logit_softcapping {config.attn_logit_softcapping} is no part of Gemma 3")
    scale = float(config.query_pre_attn_scalar) ** -0.5
    found = _fields(config, name, kinds_of(config, name), windows_of(config, name), scale, norm="head")
    return found | {"logits_softcap": float(config.final_logit_softcapping or 0)}


def _fields(
    config: Any,
    name: str,
    kinds: tuple[str, ...],
    windows: tuple[int, ...],
    scale: float,
    *,
    softcap: float = 0.0,
    norm: Literal["none", "head"] = "none",
) -> ConfigFields:
    if config.use_bidirectional_attention:
        raise ModelError(f"{name}: use_bidirectional_attention is not supported: attention is causal")
    bias = bool(config.attention_bias)
    attentions = (
        head_attention(
            config,
            name,
            rope_of(config, name, kind),
            window=window,
            scale=scale,
            softcap=softcap,
            bias=bias,
            output_bias=bias,
            norm=norm,
        )
        for kind, window in zip(kinds, windows, strict=True)
    )
    return {
        "layers": tuple(LayerConfig(attention, dense_mlp(config, name)) for attention in attentions),
        "norm_offset": 1.0,
        "embedding_scale": float(config.hidden_size) ** 0.5,
    }


GEMMA_1 = ModelFamily(("GemmaForCausalLM",), read_1)
GEMMA_2 = ModelFamily(("Gemma2ForCausalLM",), read_2, ModelNames(of_layer=SANDWICH_NORM_NAMES))
GEMMA_3 = ModelFamily(("Gemma3ForCausalLM",), read_3, ModelNames(of_layer=SANDWICH_NORM_NAMES))
GEMMA_3_IMAGES = ModelFamily(
    ("Gemma3ForConditionalGeneration",), read_3, ModelNames(of_layer=SANDWICH_NORM_NAMES).beside_images()
)
