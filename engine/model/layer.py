"""The weights of one layer of the transformer, and how they are loaded."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.linear import Linear, LinearFactory


@dataclass(frozen=True, slots=True)
class Layer:
    """Query, key and value are one linear layer, gate and up another."""

    attention_norm: Tensor
    query_key_value: Linear
    query_key_norm: Tensor | None  # [heads + kv_heads, head_dim], or None where heads are not normed
    attention_output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    def held(self) -> list[Tensor]:
        """The tensors that the layer keeps in memory."""
        norms = [self.attention_norm, self.mlp_norm]
        norms += [self.query_key_norm] if self.query_key_norm is not None else []
        linears = (self.query_key_value, self.attention_output, self.gate_up, self.down)
        return norms + [tensor for linear in linears for tensor in linear.held()]


def load_layer(config: ModelConfig, make: LinearFactory, index: int) -> Layer:
    """Raises `ModelError` where the checkpoint lacks a tensor or has another shape."""
    hidden, queries, keys = config.hidden_size, config.heads * config.head_dim, config.kv_heads * config.head_dim
    name = f"model.layers.{index}"
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    return Layer(
        attention_norm=make.tensor(f"{name}.input_layernorm.weight", (hidden,)),
        query_key_value=make.linear(
            [f"{attention}.{part}_proj" for part in "qkv"], [queries, keys, keys], hidden, config.qkv_bias
        ),
        query_key_norm=_head_norms(config, make, attention) if config.qk_norm else None,
        attention_output=make.linear([f"{attention}.o_proj"], [hidden], queries, config.output_bias),
        mlp_norm=make.tensor(f"{name}.post_attention_layernorm.weight", (hidden,)),
        gate_up=make.linear(
            [f"{mlp}.gate_proj", f"{mlp}.up_proj"], [config.intermediate_size] * 2, hidden, config.mlp_bias
        ),
        down=make.linear([f"{mlp}.down_proj"], [hidden], config.intermediate_size, config.mlp_bias),
    )


def _head_norms(config: ModelConfig, make: LinearFactory, attention: str) -> Tensor:
    """One weight per head, so that queries and keys are normed by one operator."""
    shape = (config.head_dim,)
    query, key = make.tensor(f"{attention}.q_norm.weight", shape), make.tensor(f"{attention}.k_norm.weight", shape)
    return torch.cat((query.expand(config.heads, -1), key.expand(config.kv_heads, -1)))
