"""Loads the weights of one layer of the transformer."""

from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.linear import AnyLinear, LinearFactory


@dataclass(frozen=True, slots=True)
class Layer(Generic[AnyLinear]):
    """Holds one layer's weights. Query, key and value are one linear layer, gate and up another."""

    attention_norm: Tensor  # [hidden]
    query_key_value: AnyLinear
    query_key_norm: Tensor | None  # [heads + kv_heads, head_dim], or None where heads are not normed
    attention_output: AnyLinear
    mlp_norm: Tensor  # [hidden]
    gate_up: AnyLinear
    down: AnyLinear

    def held(self) -> list[Tensor]:
        """Returns the tensors that the layer keeps in memory."""
        norms = [self.attention_norm, self.mlp_norm]
        norms += [self.query_key_norm] if self.query_key_norm is not None else []
        linears = (self.query_key_value, self.attention_output, self.gate_up, self.down)
        return norms + [tensor for linear in linears for tensor in linear.held()]


def load_layer(config: ModelConfig, make: LinearFactory[AnyLinear], index: int) -> Layer[AnyLinear]:
    """Loads the weights of layer `index`.

    Raises `ModelError` where the checkpoint lacks a tensor or has another shape.
    """
    hidden, queries, keys = config.hidden_size, config.heads * config.head_dim, config.kv_heads * config.head_dim
    name = f"model.layers.{index}"
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    query_key_value = [f"{attention}.{part}_proj" for part in "qkv"]
    gate_up = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
    return Layer(
        attention_norm=make.tensor(f"{name}.input_layernorm.weight", (hidden,)),
        query_key_value=make.linear(query_key_value, [queries, keys, keys], hidden, config.qkv_bias),
        query_key_norm=_head_norms(config, make, attention) if config.qk_norm else None,
        attention_output=make.linear([f"{attention}.o_proj"], [hidden], queries, config.output_bias),
        mlp_norm=make.tensor(f"{name}.post_attention_layernorm.weight", (hidden,)),
        gate_up=make.linear(gate_up, [config.intermediate_size] * 2, hidden, config.mlp_bias),
        down=make.linear([f"{mlp}.down_proj"], [hidden], config.intermediate_size, config.mlp_bias),
    )


def _head_norms(config: ModelConfig, make: LinearFactory[AnyLinear], attention: str) -> Tensor:
    """Loads one weight for each head, `[heads + kv_heads, head_dim]`: one operator norms queries and keys."""
    shape = (config.head_dim,)
    query, key = make.tensor(f"{attention}.q_norm.weight", shape), make.tensor(f"{attention}.k_norm.weight", shape)
    return torch.cat((query.expand(config.heads, -1), key.expand(config.kv_heads, -1)))
