"""Mixtral: Mistral with a mixture of experts in every layer."""

from typing import Any

from engine.model.config import ExpertsMLP, LayerConfig
from engine.model.families.expert_tensors import NamedExperts
from engine.model.families.family import ConfigFields, LayerNames, ModelFamily, ModelNames
from engine.model.families.reading import activation_of, checked, head_attention, rope_of


def read(config: Any, name: str) -> ConfigFields:
    attention = head_attention(config, name, rope_of(config, name), window=int(config.sliding_window or 0))
    mlp = ExpertsMLP(
        experts=int(config.num_local_experts),
        used=int(config.num_experts_per_tok),
        intermediate=int(config.intermediate_size),
        activation=activation_of(config, name),
        normalized=True,
    )
    return {"layers": (LayerConfig(attention, checked(mlp, name)),) * int(config.num_hidden_layers)}


MIXTRAL_NAMES = LayerNames(
    router="block_sparse_moe.gate",
    read_expert=NamedExperts(
        "block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3", "block_sparse_moe.experts.{}.w2"
    ),
)
MIXTRAL_FAMILY = ModelFamily(("MixtralForCausalLM",), read, ModelNames(of_layer=MIXTRAL_NAMES))
