"""Describes OLMo 2 and 3: norms behind attention and MLP instead of before them, queries and keys normed as a whole.

OLMo 3 has a window in most layers, whose rotation is not stretched (https://arxiv.org/abs/2501.00656).
"""

from typing import Any

from engine.model.config import LayerConfig
from engine.model.families.family import Family, Fields, LayerNames, Names
from engine.model.families.reading import dense_mlp, head_attention, kinds_of, rope_of, windows_of

BEHIND = LayerNames(
    attention_norm=None,
    attention_post_norm="post_attention_layernorm",
    mlp_norm=None,
    mlp_post_norm="post_feedforward_layernorm",
)


def read_2(config: Any, name: str) -> Fields:
    """See `Family.read`."""
    layers = int(config.num_hidden_layers)
    return _fields(config, name, ("full_attention",) * layers, (0,) * layers)


def read_3(config: Any, name: str) -> Fields:
    """See `Family.read`."""
    return _fields(config, name, kinds_of(config, name), windows_of(config, name))


def _fields(config: Any, name: str, kinds: tuple[str, ...], windows: tuple[int, ...]) -> Fields:
    bias = bool(config.attention_bias)
    mlp = dense_mlp(config, name)
    attentions = (
        head_attention(
            config, name, rope_of(config, name, kind), window=window, bias=bias, output_bias=bias, norm="all"
        )
        for kind, window in zip(kinds, windows, strict=True)
    )
    return {"layers": tuple(LayerConfig(attention, mlp) for attention in attentions)}


OLMO2 = Family(("Olmo2ForCausalLM",), read_2, Names(of_layer=BEHIND))
OLMO3 = Family(("Olmo3ForCausalLM",), read_3, Names(of_layer=BEHIND))
