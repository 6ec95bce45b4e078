"""Writes prompts for text in the middle of a document, for models with special tokens for that (fill-in-the-middle)."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

INFILL_MARKERS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek-Coder
)
"""For each kind of model, the tokens before the prefix, before the suffix, and after both."""


class Encode(Protocol):
    """`ModelTokenizer.encode`: returns token ids."""

    def __call__(self, text: str, special: bool, max_tokens: int | None = None) -> list[int]: ...


class Infill(NamedTuple):
    """The three token ids of a model."""

    before: int
    between: int
    behind: int
    encode: Encode

    def tokens(self, beginning: str, end: str, max_tokens: int | None) -> list[int]:
        """Returns the prompt for the text between `beginning` and `end`, of at most `max_tokens` tokens each."""
        whole = self.encode(beginning, special=True, max_tokens=max_tokens)
        bare = self.encode(beginning, special=False, max_tokens=max_tokens)
        front = whole[: len(whole) - len(bare)] if bare and whole[-len(bare) :] == bare else []
        behind = self.encode(end, special=False, max_tokens=max_tokens)
        return [*front, self.before, *bare, self.between, *behind, self.behind]


def infill(encode: Encode, token_id: Callable[[str], int | None]) -> Infill | None:
    """Returns a model's infill format, or None if its tokenizer lacks the special tokens."""
    for kind in INFILL_MARKERS:
        before, between, behind = map(token_id, kind)
        if before is not None and between is not None and behind is not None:
            return Infill(before, between, behind, encode)
    return None
