"""Finds special tokens in a text with the tokenizer library's own search, all in one pass and without Python's lock.

Python's `find` would search for one after the other, and some vocabularies have hundreds. All other threads would stand
still for as long as a client's text takes.
"""

from collections.abc import Callable, Iterable

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

UNMATCHED_TOKEN = "rest"  # stands for all text between special tokens


class SpecialTokens:
    """Searches for `tokens` from the left; of several at one position, the longest is found."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = list(tokens)
        self._search = Tokenizer(WordLevel({UNMATCHED_TOKEN: 0}, unk_token=UNMATCHED_TOKEN))
        self._search.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in self.tokens])

    def ids_in(self, text: str) -> list[int]:
        return [id for id in self._search.encode_batch_fast([text], add_special_tokens=False)[0].ids if id]

    def replaced(self, text: str, change: Callable[[str], str]) -> str:
        """Returns a text with `change` applied to each special token."""
        if not self.ids_in(text):
            return text
        (found,) = self._search.encode_batch([text], add_special_tokens=False)  # slower, and also returns positions
        pieces, at = [], 0
        for id, (start, end) in zip(found.ids, found.offsets, strict=True):
            if id:
                pieces += [text[at:start], change(text[start:end])]
                at = end
        return "".join([*pieces, text[at:]])
