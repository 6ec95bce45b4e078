"""Counts a model's weights from its config alone, for models whose files are not on this host."""

from typing import Any, NamedTuple

from checkpoints.config_fields import EXPERT_COUNT_FIELDS, USED_EXPERT_FIELDS, head_width, number


class WeightCounts(NamedTuple):
    """Numbers of weights, without norms, biases and routers' corrections."""

    stored: float  # of all linear layers but the head
    met: float  # weights among them that each token is multiplied by
    table: float  # of the embedding, and of the head if they are not tied


def weight_counts(config: dict[str, Any]) -> WeightCounts:
    """Counts the weights of a decoder with gated MLPs or experts. Fields that the config lacks count as 0."""
    hidden, layers = number(config, "hidden_size"), number(config, "num_hidden_layers")
    experts, used = number(config, *EXPERT_COUNT_FIELDS), number(config, *USED_EXPERT_FIELDS)
    dense_layers = number(config, "first_k_dense_replace") if experts else layers
    dense = 3 * hidden * number(config, "intermediate_size")
    expert = 3 * hidden * (number(config, "moe_intermediate_size") or number(config, "intermediate_size"))
    shared = number(config, "n_shared_experts") * expert
    shared += 3 * hidden * number(config, "shared_expert_intermediate_size")
    every = layers * _attention(config) + dense_layers * dense + (layers - dense_layers) * (shared + hidden * experts)
    sparse = (layers - dense_layers) * expert
    return WeightCounts(every + experts * sparse, every + used * sparse, hidden * number(config, "vocab_size"))


def adapter_values(config: dict[str, Any]) -> float:
    """Returns the values of an adapter of rank 1 in all linear layers of attention and MLP: inputs and outputs of each.

    0 for a model with experts or latent attention, whose adapters' size the config does not say.
    """
    hidden, inner = number(config, "hidden_size"), number(config, "intermediate_size")
    if number(config, *EXPERT_COUNT_FIELDS) or number(config, "kv_lora_rank"):
        return 0.0
    heads, width = number(config, "num_attention_heads"), head_width(config)
    kv_heads = number(config, "num_key_value_heads") or heads
    attention = 2 * (hidden + heads * width) + 2 * (hidden + kv_heads * width)
    return number(config, "num_hidden_layers") * (attention + 3 * (hidden + inner))


def _attention(config: dict[str, Any]) -> float:
    """Returns the weights of a layer's attention: of heads with their own keys, or over latent vectors."""
    hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    latent = number(config, "kv_lora_rank")
    if not latent:
        width = head_width(config)
        return hidden * width * (2 * heads + 2 * (number(config, "num_key_value_heads") or heads))
    nope, rope = number(config, "qk_nope_head_dim"), number(config, "qk_rope_head_dim")
    value, rank = number(config, "v_head_dim"), number(config, "q_lora_rank")
    queries = rank * (hidden + heads * (nope + rope)) if rank else hidden * heads * (nope + rope)
    return queries + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
