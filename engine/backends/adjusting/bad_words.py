"""Finds the tokens that would complete a bad word, checking only words that contain the text's last token."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Word = tuple[list[int], int]
"""Tokens before the last token of a word, and the last token."""


class BadWords:
    """Token sequences that may not occur in an output. Tokens of the prompt do not count."""

    def __init__(self, words: Sequence[Sequence[int]], vocab: int) -> None:
        """A word with an id of `vocab` or more can never be drawn, and is ignored."""
        possible = [list(word) for word in words if word and max(word) < vocab]
        self.single = [word[0] for word in possible if len(word) == 1]
        pairs = [(last, first) for first, last in (word for word in possible if len(word) == 2)]
        self._pairs: NDArray[np.int32] = np.array(pairs, np.int32).reshape(-1, 2)
        self._by_last: dict[int, list[Word]] = {}  # by the second to last token of a word
        self._by_second: dict[int, list[Word]] = {}  # by the third to last token
        for *before, last in possible:
            if before:
                self._by_last.setdefault(before[-1], []).append((before, last))
            if len(before) > 1:
                self._by_second.setdefault(before[-2], []).append((before, last))

    def completing(self, tokens: Sequence[int], begin: int) -> list[int]:
        """Returns the tokens that would now complete a word; `tokens[begin:]` is the output so far."""
        if len(tokens) == begin:
            return self.single
        words = self._by_last.get(tokens[-1], ())
        return self.single + [last for before, last in words if _ends_with(tokens, begin, before)]

    def conditional(self, tokens: Sequence[int], begin: int) -> NDArray[np.int32]:
        """Returns `[n, 2]`: tokens that would complete a word, and the pending token that each would follow.

        `tokens` lacks the pending token. Words of a single token do not depend on it.
        """
        longer = self._by_second.get(tokens[-1], ()) if len(tokens) > begin else ()
        found = [(last, before[-1]) for before, last in longer if _ends_with(tokens, begin, before[:-1])]
        return np.concatenate((self._pairs, np.array(found, np.int32))) if found else self._pairs


def _ends_with(tokens: Sequence[int], begin: int, end: list[int]) -> bool:
    first = len(tokens) - len(end)
    return first >= begin and list(tokens[first:]) == end
