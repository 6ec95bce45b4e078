"""Names of a language model's layers, which differ if it is part of a model that also reads images."""

LAYER_PREFIXES = ("language_model.model.", "model.language_model.", "model.")
"""Prefixes of layers' names; versions of transformers differ."""
_PARTS = (
    *("vision_tower.", "vision_model.", "vision_embedder.", "vision_encoder.", "visual.", "audio_tower."),
    *("multi_modal_projector.", "mm_projector.", "projector.", "aligner.", "vision_projection.", "image_newline"),
    *("embed_vision.", "embed_audio."),
)
BESIDE_TEXT = (*_PARTS, *(f"model.{part}" for part in _PARTS))
"""Prefixes of the parts that only images, videos and sounds pass through."""


def inner(name: str) -> str:
    """Returns a layer's name without prefix: `layers.0.mlp.up_proj`."""
    return name.removeprefix(next((prefix for prefix in LAYER_PREFIXES if name.startswith(prefix)), ""))


def spellings(name: str) -> tuple[str, ...]:
    """Returns all names of a layer, the given one first.

    The program that wrote a config may have loaded the language model alone.
    """
    rest = inner(name)
    return (name, *(prefix + rest for prefix in LAYER_PREFIXES if prefix + rest != name)) if rest != name else (name,)


def is_beside_text(name: str) -> bool:
    return name.removeprefix("model.").startswith(BESIDE_TEXT)
