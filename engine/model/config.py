"""Says which model it is: structs whose fields are all that tells one family from another.

`engine/model/families/` makes them out of checkpoints' configs.
"""

import hashlib
from typing import Literal

import msgspec
from msgspec import Struct

from engine.model.rope import Rope

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]
"""What is between an MLP's products, of gate g and up u: silu(g) u, gelu(g) u by the tanh's approximation, or gpt-oss's
(u + 1) g sigmoid(1.702 g), of a g up to 7 and a u in -7 … 7."""


class HeadAttention(Struct, frozen=True, kw_only=True, tag="heads"):
    """Describes attention whose KV is a key and a value for each KV head."""

    heads: int  # of queries
    kv_heads: int  # of keys, and of values
    head_dim: int
    scale: float  # of scores
    rope: Rope | None  # None: positions are not rotated into this layer's queries and keys
    window: int = 0  # tokens that a query sees, itself included; 0 is all
    softcap: float = 0.0  # a score s becomes softcap tanh(s / softcap); 0: it stays
    bias: bool = False  # of queries, keys and values
    output_bias: bool = False
    norm: Literal["none", "head", "all"] = "none"  # of queries and of keys: each head alone, or all heads as one vector
    sinks: bool = False  # each head has a score more, of a key that nobody has, whose value is 0


class LatentAttention(Struct, frozen=True, kw_only=True, tag="latent"):
    """Describes attention whose KV is one latent vector and one rotated key, which all heads share.

    Multi-head latent attention: DeepSeek-V2 (https://arxiv.org/abs/2405.04434).
    """

    heads: int
    query_rank: int  # of the latent vector that queries come from; 0: they come from the hidden state
    latent_rank: int  # numbers of the latent vector that keys and values come from
    rope_dim: int  # numbers of a query, and of the shared key, that are rotated
    nope_dim: int  # numbers of a query that are not
    value_dim: int
    scale: float
    rope: Rope
    bias: bool = False  # of the products that give latent vectors, and of the output
    norm_eps: float = 1e-6  # of the norms of latent vectors

    window = 0


class DenseMLP(Struct, frozen=True, kw_only=True, tag="dense"):
    """Describes a gated MLP: down(activation(gate, up))."""

    intermediate: int
    activation: Activation = "silu"
    bias: bool = False


class ExpertsMLP(Struct, frozen=True, kw_only=True, tag="experts"):
    """Describes a mixture of experts: a router chooses `used` of `experts` gated MLPs for each token, and weighs them.

    A token's scores are `scores` of the router's logits. With `correction`, a bias for each expert is added where
    experts are chosen, and not where they are weighed. With several `groups`, the experts of all but the best
    `groups_used` groups are out of the choice; a group is as good as `group_score` says.
    """

    experts: int
    used: int
    intermediate: int
    activation: Activation = "silu"
    bias: bool = False  # of the experts' products
    router_bias: bool = False
    scores: Literal["softmax", "softmax_of_used", "sigmoid"] = "softmax"
    normalized: bool = False  # the weights of those used are divided by their sum
    scale: float = 1.0  # of the weights
    correction: bool = False
    groups: int = 1
    groups_used: int = 1
    group_score: Literal["best", "best_two"] = "best"  # the largest score of a group, or the sum of its largest two
    shared: int = 0  # intermediate numbers of the expert that all tokens use; 0: there is none
    shared_gate: bool = False  # its output is weighed by a sigmoid of one more product


class AttentionLayer(Struct, frozen=True):
    """Describes what of one layer the KV pool and attention know."""

    attention: HeadAttention | LatentAttention


class LayerConfig(AttentionLayer, frozen=True):
    """Describes one layer: attention, then an MLP."""

    mlp: DenseMLP | ExpertsMLP


class TextModel(Struct, frozen=True, kw_only=True):
    """Describes what of a decoder-only model everybody knows, whoever computes it."""

    name: str  # of the model's directory
    architecture: str  # as transformers calls it
    vocab_size: int
    layers: tuple[AttentionLayer, ...]
    max_model_len: int  # tokens of the longest text
    eos_token_ids: tuple[int, ...]  # tokens that end an answer

    @property
    def windows(self) -> tuple[int, ...]:
        """Returns the window of each layer, 0 for those that see all."""
        return tuple(layer.attention.window for layer in self.layers)


class ModelConfig(TextModel, frozen=True, kw_only=True):
    """Describes a model of our own transformer. Where its norms are, its family's names of tensors say."""

    hidden_size: int
    layers: tuple[LayerConfig, ...]
    norm_eps: float
    norm_offset: float = 0.0  # is added to the weights of all norms
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and MLP add to the hidden state
    logits_scale: float = 1.0
    logits_softcap: float = 0.0  # logits l become softcap tanh(l / softcap); 0: they stay
    tied_head: bool = False  # the head's weights are the embedding's
    left_out: int = 0  # layers behind the last in the checkpoint, which predict further tokens
    next_layer: LayerConfig | None = None  # the first of those, without which the model's own tokens come

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Returns the different rotations that layers have."""
        return tuple(dict.fromkeys(layer.attention.rope for layer in self.layers if layer.attention.rope is not None))


def heads_of(layer: AttentionLayer) -> HeadAttention:
    """Returns the attention of a layer that is known to have keys and values for heads."""
    assert isinstance(layer.attention, HeadAttention)
    return layer.attention


def computation(config: TextModel) -> bytes:
    """Encodes what decides the KV of given tokens and weights, for a digest: all but names and limits."""
    kept = msgspec.structs.replace(config, name="", max_model_len=0, eos_token_ids=())
    return hashlib.sha256(msgspec.json.encode(kept)).hexdigest()[:32].encode()
