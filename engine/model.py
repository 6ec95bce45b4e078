"""The one decoder-only transformer; what tells architectures apart is in its config.

It touches the outside at four points: an `AttentionStep` that stores and attends, the linear layers that a factory
made, the operators between those, and the signal that a layer's KV is written.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from core.status import Progress
from engine.architectures import ModelConfig
from engine.attention import AttentionStep
from engine.elementwise import Angles, Elementwise
from engine.linear import Linear, LinearFactory


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer. Query, key and value are one linear layer, gate and up another."""

    attention_norm: Tensor
    query_key_value: Linear
    query_key_norm: Tensor | None  # [heads + kv_heads, head_dim], or None where heads are not normed
    attention_output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class Model:
    """Token ids in, logits out; KV goes to the attention step."""

    def __init__(self, config: ModelConfig, make: LinearFactory, between: Elementwise, progress: Progress) -> None:
        self._config = config
        self._between = between
        self._embedding = make.tensor("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
        self._layers: list[Layer] = []
        for index in range(config.layers):
            progress("loading weights", 100.0 * index / (config.layers + 1))
            self._layers.append(_load_layer(config, make, f"model.layers.{index}"))
        self._norm = make.tensor("model.norm.weight", (config.hidden_size,))
        if config.tied_head:
            self._head = make.of(self._embedding)
        else:
            self._head = make.linear(["lm_head"], [config.vocab_size], config.hidden_size)
        progress("loading weights", 100.0)

    def weights_bytes(self) -> int:
        """Bytes of the weights as they are held: a tied head is counted only where it was packed into a copy."""
        held = [self._embedding, self._norm, *self._head.held()]
        for layer in self._layers:
            held += [layer.attention_norm, layer.mlp_norm]
            held += [layer.query_key_norm] if layer.query_key_norm is not None else []
            for linear in (layer.query_key_value, layer.attention_output, layer.gate_up, layer.down):
                held += linear.held()
        return sum({id(tensor): tensor.numel() * tensor.element_size() for tensor in held}.values())

    def forward(
        self, token_ids: Tensor, positions: Tensor, step: AttentionStep, stored: Callable[[int], None]
    ) -> Tensor:
        """Hidden states `[tokens, hidden]` before the last norm; `stored(layer)` follows each layer's store."""
        between = self._between
        angles = between.angles(positions)
        hidden: Tensor = functional.embedding(token_ids, self._embedding)
        change: Tensor | None = None
        for index, layer in enumerate(self._layers):
            hidden, normed = between.add_norm(hidden, change, layer.attention_norm)
            queries, keys_values = self._project(layer, normed, angles)
            step.store(index, keys_values)
            stored(index)
            change = layer.attention_output(step.attend(index, queries).flatten(1))
            hidden, normed = between.add_norm(hidden, change, layer.mlp_norm)
            change = layer.down(between.gate(layer.gate_up(normed)))
        return hidden if change is None else hidden + change

    def logits(self, hidden: Tensor) -> Tensor:
        """`[rows, vocab]` of `hidden` `[rows, hidden]`, fp32."""
        return self._head(self._between.add_norm(hidden, None, self._norm)[1]).float()

    def _project(self, layer: Layer, hidden: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Queries `[tokens, heads, dim]`, and keys before values `[tokens, 2 x kv_heads, dim]`, positions applied."""
        config = self._config
        rotated = config.heads + config.kv_heads
        heads = layer.query_key_value(hidden).view(len(hidden), -1, config.head_dim)
        self._between.rotate(heads[:, :rotated], angles, layer.query_key_norm)
        return heads[:, : config.heads], heads[:, config.heads :]


def _load_layer(config: ModelConfig, make: LinearFactory, name: str) -> Layer:
    hidden, queries, keys = config.hidden_size, config.heads * config.head_dim, config.kv_heads * config.head_dim
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
