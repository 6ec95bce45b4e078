"""Describes EXAONE 4: norms behind attention and MLP; beside layers with a window, those without rotate nothing."""

from typing import Any

from engine.model.config import LayerConfig
from engine.model.families.family import Family, Fields, Names
from engine.model.families.olmo import BEHIND
from engine.model.families.reading import dense_mlp, head_attention, rope_of, windows_of


def read(config: Any, name: str) -> Fields:
    """See `Family.read`."""
    rope, mlp = rope_of(config, name), dense_mlp(config, name)
    mixed = config.sliding_window is not None
    attentions = (
        head_attention(config, name, rope if window or not mixed else None, window=window, norm="head")
        for window in windows_of(config, name)
    )
    return {"layers": tuple(LayerConfig(attention, mlp) for attention in attentions)}


FAMILY = Family(("Exaone4ForCausalLM",), read, Names(of_layer=BEHIND))
