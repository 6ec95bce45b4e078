"""Writes prompts whose answer is the middle of a text, for models with tokens of their own for that."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

INFILL_MARKERS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek-Coder
)
"""The tokens before a beginning, before an end, and behind both, of each kind of model."""


class Encode(Protocol):
    """Returns token ids, as `ModelTokenizer.encode` does."""

    def __call__(self, text: str, special: bool, most: int | None = None) -> list[int]: ...


class Infill(NamedTuple):
    """Holds the three token ids of a model."""

    before: int
    between: int
    behind: int
    encode: Encode

    def tokens(self, beginning: str, end: str, most: int | None) -> list[int]:
        """Returns the prompt for what stands between `beginning` and `end`, at most `most` tokens of each."""
        whole = self.encode(beginning, special=True, most=most)
        bare = self.encode(beginning, special=False, most=most)
        front = whole[: len(whole) - len(bare)] if bare and whole[-len(bare) :] == bare else []
        return [*front, self.before, *bare, self.between, *self.encode(end, special=False, most=most), self.behind]


def infill(encode: Encode, token_id: Callable[[str], int | None]) -> Infill | None:
    """Returns how a model fills in a middle, or None if its tokenizer has no tokens for that."""
    for kind in INFILL_MARKERS:
        before, between, behind = map(token_id, kind)
        if before is not None and between is not None and behind is not None:
            return Infill(before, between, behind, encode)
    return None
