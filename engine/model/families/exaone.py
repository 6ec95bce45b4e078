"""EXAONE 4: norms after attention and MLP; if some layers have a window, the full-attention layers have no rotation."""

from typing import Any

from engine.model.config import LayerConfig
from engine.model.families.family import ConfigFields, ModelFamily, ModelNames
from engine.model.families.olmo import POST_NORM_NAMES
from engine.model.families.reading import dense_mlp, head_attention, rope_of, windows_of


def read(config: Any, name: str) -> ConfigFields:
    rope, mlp = rope_of(config, name), dense_mlp(config, name)
    mixed = config.sliding_window is not None
    attentions = (
        head_attention(config, name, rope if window or not mixed else None, window=window, norm="head")
        for window in windows_of(config, name)
    )
    return {"layers": tuple(LayerConfig(attention, mlp) for attention in attentions)}


EXAONE_4 = ModelFamily(("Exaone4ForCausalLM",), read, ModelNames(of_layer=POST_NORM_NAMES))
