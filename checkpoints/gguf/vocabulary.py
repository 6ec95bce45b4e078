"""Holds the words of a GGUF file, and what a kind of tokenizer makes of them."""

from typing import Any

from msgspec import Struct

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens, as the file numbers them."""


class Vocabulary(Struct, frozen=True):
    """Holds words and their types by token id."""

    words: list[str]
    kinds: list[int]

    def of_kinds(self, *kinds: int) -> list[int]:
        """Returns the ids of the tokens of some types."""
        return [token for token, kind in enumerate(self.kinds) if kind in kinds]

    def ids(self) -> dict[str, int]:
        """Returns the id of each word that can be in a text; the first of equal words has it."""
        found: dict[str, int] = {}
        for token, word in enumerate(self.words):
            if self.kinds[token] != UNUSED:
                found.setdefault(word, token)
        return found


class Parts(Struct, frozen=True):
    """Holds the parts of a tokenizer.json in which kinds of tokenizers differ."""

    model: dict[str, Any]
    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, Any] | None
    decoder: dict[str, Any]
    begins: bool  # a text begins with the token for it, where the file does not say


def model_of(vocabulary: dict[str, int], merges: list[tuple[str, str]], **fields: Any) -> dict[str, Any]:
    """Returns the model of a tokenizer.json that merges pairs, the first of `merges` before the others."""
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
