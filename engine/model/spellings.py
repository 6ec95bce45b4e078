"""Spells the names of a language model's layers as the classes do that have it: alone, or as a part beside images."""

LAYER_PREFIXES = ("language_model.model.", "model.language_model.", "model.")
"""Beginnings of layers' names; versions of libraries order the names of parts differently."""
BESIDE_TEXT = ("vision_tower.", "multi_modal_projector.")
"""Beginnings of the names of parts that only images pass through."""


def inner(name: str) -> str:
    """Returns a layer's name without its beginning: `layers.0.mlp.up_proj`."""
    return name.removeprefix(next((prefix for prefix in LAYER_PREFIXES if name.startswith(prefix)), ""))


def spellings(name: str) -> tuple[str, ...]:
    """Returns the names that a layer may have, its own first: `model.language_model.layers.0.mlp.up_proj`, and others.

    The program that wrote the names may have loaded the language model alone.
    """
    rest = inner(name)
    return (name, *(prefix + rest for prefix in LAYER_PREFIXES if prefix + rest != name)) if rest != name else (name,)


def is_beside_text(name: str) -> bool:
    """Tells whether only images pass through a layer."""
    return name.removeprefix("model.").startswith(BESIDE_TEXT)
