"""Describes Qwen 3 with mixtures of experts: some layers may be dense."""

from typing import Any

from engine.model.config import DenseMLP, ExpertsMLP, LayerConfig
from engine.model.families.family import Family, Fields
from engine.model.families.reading import activation_of, checked, head_attention, rope_of


def read_3(config: Any, name: str) -> Fields:
    """See `Family.read`."""
    bias, activation = bool(config.attention_bias), activation_of(config, name)
    window = int(config.sliding_window or 0)
    attention = head_attention(
        config, name, rope_of(config, name), window=window, bias=bias, output_bias=bias, norm="head"
    )
    dense = DenseMLP(intermediate=int(config.intermediate_size), activation=activation)
    experts = ExpertsMLP(
        experts=int(config.num_experts),
        used=int(config.num_experts_per_tok),
        intermediate=int(config.moe_intermediate_size),
        activation=activation,
        normalized=bool(config.norm_topk_prob),
    )
    return {
        "layers": tuple(
            LayerConfig(attention, checked(experts, name) if sparse else dense) for sparse in sparse_layers(config)
        )
    }


def sparse_layers(config: Any) -> list[bool]:
    """Tells of each layer whether it has experts."""
    step, dense = int(config.decoder_sparse_step), set(config.mlp_only_layers)
    layers = range(int(config.num_hidden_layers))
    return [int(config.num_experts) > 0 and (layer + 1) % step == 0 and layer not in dense for layer in layers]


QWEN3 = Family(("Qwen3MoeForCausalLM",), read_3)
