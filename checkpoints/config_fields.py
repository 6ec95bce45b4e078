"""Fields of a model's config that say how large it is, by the names that families give them."""

from typing import Any

EXPERT_COUNT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts")
USED_EXPERT_FIELDS = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token")


def number(config: dict[str, Any], *fields: str) -> float:
    """Returns the first of these fields that is a number, or 0."""
    return next((float(config[field]) for field in fields if isinstance(config.get(field), int | float)), 0.0)


def head_width(config: dict[str, Any]) -> float:
    """Returns the values of a head."""
    heads = number(config, "num_attention_heads")
    return number(config, "head_dim") or (number(config, "hidden_size") / heads if heads else 0.0)
