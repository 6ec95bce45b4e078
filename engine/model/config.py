"""The config of a model: structs whose fields hold every difference between families.

`engine/model/families/` makes them from checkpoints' configs.
"""

import hashlib
from typing import Literal

import msgspec
from msgspec import Struct

from engine.model.rope import Rope

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]
"""Activation of an MLP, from gate g and up u: silu(g) u, gelu(g) u with the tanh approximation, or gpt-oss's
(u + 1) g sigmoid(1.702 g) with g clamped to at most 7 and u to -7 … 7."""


class HeadAttention(Struct, frozen=True, kw_only=True, tag="heads"):
    """Multi-head or grouped-query attention: KV is a key and a value for each KV head."""

    heads: int  # query heads
    kv_heads: int
    head_dim: int
    scale: float  # factor of scores
    rope: Rope | None  # None: this layer rotates nothing
    window: int = 0  # tokens that a query sees, itself included; 0: all
    softcap: float = 0.0  # a score s becomes softcap tanh(s / softcap); 0: off
    bias: bool = False  # of queries, keys and values
    output_bias: bool = False
    norm: Literal["none", "head", "all"] = "none"  # of queries and keys: by head, or across all heads
    sinks: bool = False  # each head has one more score in its softmax, whose value is 0


class LatentAttention(Struct, frozen=True, kw_only=True, tag="latent"):
    """Attention whose KV is one latent vector and one rotated key, shared by all heads.

    Multi-head latent attention: DeepSeek-V2 (https://arxiv.org/abs/2405.04434).
    """

    heads: int
    query_rank: int  # length of the queries' latent vector; 0: queries come from the hidden state
    latent_rank: int  # length of the latent vector of keys and values
    rope_dim: int  # rotated values of a query, and of the shared key
    nope_dim: int  # values of a query that are not rotated
    value_dim: int
    scale: float
    rope: Rope
    bias: bool = False  # of the products for latent vectors, and of the output
    norm_eps: float = 1e-6  # of the norms of latent vectors

    window = 0


class DenseMLP(Struct, frozen=True, kw_only=True, tag="dense"):
    """A gated MLP: down(activation(gate, up))."""

    intermediate: int
    activation: Activation = "silu"
    bias: bool = False


class ExpertsMLP(Struct, frozen=True, kw_only=True, tag="experts"):
    """A mixture of experts: for each token, a router chooses `used` of `experts` gated MLPs and weights them.

    `scores` is the function of the router's logits. With `correction`, a bias for each expert is added to choose
    experts, but not to weight them. With several `groups`, only the experts of the best `groups_used` groups can be
    chosen, by `group_score`.
    """

    experts: int
    used: int
    intermediate: int
    activation: Activation = "silu"
    bias: bool = False  # of the experts' products
    router_bias: bool = False
    scores: Literal["softmax", "softmax_of_used", "sigmoid"] = "softmax"
    normalized: bool = False  # weights of the chosen experts are divided by their sum
    scale: float = 1.0  # factor of the weights
    correction: bool = False
    groups: int = 1
    groups_used: int = 1
    group_score: Literal["best", "best_two"] = "best"  # the largest score of a group, or the sum of its two largest
    shared: int = 0  # intermediate size of the expert that all tokens use; 0: none
    shared_gate: bool = False  # its output is weighted by the sigmoid of one more product


class AttentionLayer(Struct, frozen=True):
    """The part of a layer that the KV pool and attention know."""

    attention: HeadAttention | LatentAttention


class LayerConfig(AttentionLayer, frozen=True):
    """One layer: attention, then an MLP."""

    mlp: DenseMLP | ExpertsMLP


class TextModel(Struct, frozen=True, kw_only=True):
    """A decoder-only model, computed by our transformer or by transformers' own code."""

    name: str  # of the model's directory
    architecture: str  # transformers' class
    vocab_size: int
    layers: tuple[AttentionLayer, ...]
    max_model_len: int  # maximum tokens of a sequence
    eos_token_ids: tuple[int, ...]

    @property
    def windows(self) -> tuple[int, ...]:
        """Returns the window of each layer; 0 for full attention."""
        return tuple(layer.attention.window for layer in self.layers)


class ModelConfig(TextModel, frozen=True, kw_only=True):
    """A model of `engine.model.transformer`. The family's tensor names tell where norms are."""

    hidden_size: int
    layers: tuple[LayerConfig, ...]
    norm_eps: float
    norm_offset: float = 0.0  # added to the weights of all norms
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # factor of the outputs of attention and MLP
    logits_scale: float = 1.0
    logits_softcap: float = 0.0  # a logit l becomes softcap tanh(l / softcap); 0: off
    tied_head: bool = False  # the head's weights are the embedding's
    left_out: int = 0  # multi-token prediction layers after the last layer in the checkpoint
    next_layer: LayerConfig | None = None  # the first such layer, which the model itself does not need

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Returns the distinct rotations of the layers."""
        return tuple(dict.fromkeys(layer.attention.rope for layer in self.layers if layer.attention.rope is not None))


def heads_of(layer: AttentionLayer) -> HeadAttention:
    assert isinstance(layer.attention, HeadAttention)
    return layer.attention


def computation(config: TextModel) -> bytes:
    """Returns a digest of all fields that affect KV: all but names and limits."""
    kept = msgspec.structs.replace(config, name="", max_model_len=0, eos_token_ids=())
    return hashlib.sha256(msgspec.json.encode(kept)).hexdigest()[:32].encode()
