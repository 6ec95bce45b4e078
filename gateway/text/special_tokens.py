"""Finds the special tokens that a text spells out, by the tokenizer library's own search, all of them in one pass.

Python's `find` would look for one after the other, and some vocabularies have hundreds of them; other threads would
stand still meanwhile, for as long as a client's text takes.
"""

from collections.abc import Callable, Iterable

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

UNMATCHED_TOKEN = "rest"  # of a text, between special tokens


class SpecialTokens:
    """Looks for `tokens`: from the left, of those that begin at one place the longest."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = list(tokens)
        self._search = Tokenizer(WordLevel({UNMATCHED_TOKEN: 0}, unk_token=UNMATCHED_TOKEN))
        self._search.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in self.tokens])

    def found(self, text: str) -> list[int]:
        """Returns numbers of the special tokens in a text, in their order."""
        return [id for id in self._search.encode_batch_fast([text], add_special_tokens=False)[0].ids if id]

    def replaced(self, text: str, change: Callable[[str], str]) -> str:
        """Returns a text with each special token changed."""
        if not self.found(text):
            return text
        (found,) = self._search.encode_batch([text], add_special_tokens=False)  # finds places too, and takes longer
        pieces, at = [], 0
        for id, (start, end) in zip(found.ids, found.offsets, strict=True):
            if id:
                pieces += [text[at:start], change(text[start:end])]
                at = end
        return "".join([*pieces, text[at:]])
