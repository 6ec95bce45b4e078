"""Language models inside models that also read images: Qwen-VL, GLM-4.1V, InternVL, LLaVA, Kimi K2.5 and others.

Without images, the three positions of Qwen's and GLM's rotation (time, height, width) are equal, so it is an ordinary
rotation (Wang et al. 2024, https://arxiv.org/abs/2409.12191).
"""

from collections.abc import Mapping
from typing import Any

from contracts.errors import OptionError
from engine.model.config import ExpertsMLP, LayerConfig
from engine.model.families import deepseek, glm, llama, mistral, qwen
from engine.model.families.expert_tensors import stacked_experts
from engine.model.families.family import ConfigFields, LayerNames, ModelFamily, ModelNames, ReadConfig
from engine.model.families.qwen_moe import sparse_layers
from engine.model.families.reading import activation_of, checked, dense_mlp, head_attention, rope_of

TEXT_READERS: Mapping[str, ReadConfig] = {
    "llama": llama.read,
    "mistral": mistral.read,
    "qwen2": qwen.read_2,
    "qwen3": qwen.read_3,
}
"""Readers by the type of the language model, for models that are built around any of these."""


def read_qwen_3_vl(config: Any, name: str) -> ConfigFields:
    bias = bool(config.attention_bias)
    attention = head_attention(config, name, rope_of(config, name), bias=bias, output_bias=bias, norm="head")
    return {"layers": (LayerConfig(attention, dense_mlp(config, name)),) * int(config.num_hidden_layers)}


def read_qwen_3_vl_moe(config: Any, name: str) -> ConfigFields:
    bias = bool(config.attention_bias)
    attention = head_attention(config, name, rope_of(config, name), bias=bias, output_bias=bias, norm="head")
    experts = ExpertsMLP(
        experts=int(config.num_experts),
        used=int(config.num_experts_per_tok),
        intermediate=int(config.moe_intermediate_size),
        activation=activation_of(config, name),
        normalized=True,
    )
    dense, experts = dense_mlp(config, name), checked(experts, name)
    return {"layers": tuple(LayerConfig(attention, experts if sparse else dense) for sparse in sparse_layers(config))}


def read_glm_4_v(config: Any, name: str) -> ConfigFields:
    rope = rope_of(config, name, partial=True, interleaved=True)
    attention = head_attention(config, name, rope, bias=True)
    return {"layers": (LayerConfig(attention, dense_mlp(config, name)),) * int(config.num_hidden_layers)}


def read_any(config: Any, name: str) -> ConfigFields:
    read = TEXT_READERS.get(config.model_type)
    if read is None:
        known = ", ".join(TEXT_READERS)
        raise OptionError(f"{name}: a language model of type {config.model_type} is not supported; supported: {known}")
    return read(config, name)


NAMES_BESIDE_IMAGES = ModelNames().beside_images()
QWEN_2_VL = ModelFamily(
    ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"), qwen.read_2, NAMES_BESIDE_IMAGES
)
QWEN_3_VL = ModelFamily(("Qwen3VLForConditionalGeneration",), read_qwen_3_vl, NAMES_BESIDE_IMAGES)
QWEN_3_VL_MOE = ModelFamily(
    ("Qwen3VLMoeForConditionalGeneration",),
    read_qwen_3_vl_moe,
    ModelNames(of_layer=LayerNames(read_expert=stacked_experts)).beside_images(),
)
GLM_4_V = ModelFamily(
    ("Glm4vForConditionalGeneration", "Glm46VForConditionalGeneration"),
    read_glm_4_v,
    glm.GLM_4_0414.names.beside_images(),
)
AROUND_ANY = ModelFamily(
    (
        "InternVLForConditionalGeneration",
        "LlavaForConditionalGeneration",
        "LlavaNextForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
    ),
    read_any,
    NAMES_BESIDE_IMAGES,
)
KIMI_K2_5 = ModelFamily(
    ("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"),
    deepseek.read_3,
    deepseek.DEEPSEEK_NAMES.beside_images(),
)
