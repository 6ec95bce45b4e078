"""Lists the families that the one transformer of this package serves."""

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
    olmo,
    phi3,
    qwen,
    qwen_moe,
    smollm3,
)
from engine.model.families.family import Family, Names

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    mistral.MISTRAL3,
    mistral.MINISTRAL,
    qwen.QWEN2,
    qwen.QWEN3,
    gemma.GEMMA1,
    gemma.GEMMA2,
    gemma.GEMMA3,
    gemma.GEMMA3_IMAGES,
    phi3.FAMILY,
    granite.FAMILY,
    olmo.OLMO2,
    olmo.OLMO3,
    smollm3.FAMILY,
    glm.GLM,
    glm.GLM4,
    deepseek.V2,
    deepseek.V3,
    mixtral.FAMILY,
    qwen_moe.QWEN2,
    qwen_moe.QWEN3,
    olmo.OLMOE,
    gpt_oss.FAMILY,
    exaone.FAMILY,
    llama_like.SEED_OSS,
    llama_like.CWM,
    llama_like.ERNIE,
    llama_like.HELIUM,
)

SUPPORTED = tuple(architecture for family in FAMILIES for architecture in family.architectures)


def family_of(architecture: str) -> Family:
    """Returns the family of an architecture that is one of `SUPPORTED`."""
    return next(family for family in FAMILIES if architecture in family.architectures)


def names_of(config: ModelConfig) -> Names:
    """Returns how the tensors of a model are called in its checkpoint."""
    return family_of(config.architecture).names
