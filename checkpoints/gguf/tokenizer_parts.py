"""The parts of a tokenizer.json that depend on the kind of tokenizer in a GGUF file."""

from typing import Any

from msgspec import Struct


class TokenizerParts(Struct, frozen=True):
    """Entries of a tokenizer.json, and a default that GGUF leaves open."""

    model: dict[str, Any]
    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, Any] | None
    decoder: dict[str, Any]
    adds_bos: bool  # whether texts begin with the BOS token if the file does not say


def bpe_model(vocabulary: dict[str, int], merges: list[tuple[str, str]], **fields: Any) -> dict[str, Any]:
    """Returns the `model` of a tokenizer.json that merges pairs; earlier `merges` win."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    } | fields
