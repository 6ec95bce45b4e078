"""The model families that `engine.model.transformer` serves."""

from collections.abc import Sequence
from typing import Any

from checkpoints.pooling import CLASSIFIER_SUFFIX, HEADLESS_SUFFIX
from engine.model.config import ModelConfig
from engine.model.families import (
    deepseek,
    exaone,
    gemma,
    glm,
    gpt_oss,
    granite,
    llama,
    llama_like,
    mistral,
    mixtral,
    multimodal,
    olmo,
    phi3,
    qwen,
    qwen_moe,
    smollm3,
)
from engine.model.families.family import ModelFamily, ModelNames

MODEL_FAMILIES: tuple[ModelFamily, ...] = (
    llama.LLAMA_FAMILY,
    mistral.MISTRAL_FAMILY,
    mistral.MISTRAL_3,
    mistral.MINISTRAL_FAMILY,
    qwen.QWEN_2,
    qwen.QWEN_3,
    gemma.GEMMA_1,
    gemma.GEMMA_2,
    gemma.GEMMA_3,
    gemma.GEMMA_3_IMAGES,
    phi3.PHI_3,
    granite.GRANITE_3,
    olmo.OLMO_2,
    olmo.OLMO_3,
    smollm3.SMOLLM_3,
    glm.GLM_4,
    glm.GLM_4_0414,
    deepseek.DEEPSEEK_V2,
    deepseek.DEEPSEEK_V3,
    mixtral.MIXTRAL_FAMILY,
    qwen_moe.QWEN_2_MOE,
    qwen_moe.QWEN_3_MOE,
    olmo.OLMO_E,
    gpt_oss.GPT_OSS,
    exaone.EXAONE_4,
    llama_like.SEED_OSS,
    llama_like.CWM_FAMILY,
    llama_like.ERNIE_4_5,
    llama_like.HELIUM_FAMILY,
    multimodal.QWEN_2_VL,
    multimodal.QWEN_3_VL,
    multimodal.QWEN_3_VL_MOE,
    multimodal.GLM_4_V,
    multimodal.AROUND_ANY,
    multimodal.KIMI_K2_5,
)

SUPPORTED_ARCHITECTURES = tuple(architecture for family in MODEL_FAMILIES for architecture in family.architectures)


def served_architecture(names: Sequence[Any]) -> str | None:
    """Returns the architecture of ours that computes the only one of `names`; None if none does.

    A model without a head, or with a classifier, has the layers of the same model with a head for tokens.
    """
    if len(names) != 1:
        return None
    name = str(names[0])
    for suffix in (CLASSIFIER_SUFFIX, HEADLESS_SUFFIX):
        if name.endswith(suffix) and (same := f"{name.removesuffix(suffix)}ForCausalLM") in SUPPORTED_ARCHITECTURES:
            return same
    return name if name in SUPPORTED_ARCHITECTURES else None


def family_of(architecture: str) -> ModelFamily:
    return next(family for family in MODEL_FAMILIES if architecture in family.architectures)


def names_of(config: ModelConfig) -> ModelNames:
    return family_of(config.architecture).names
