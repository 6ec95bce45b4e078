"""Finds the tokens that would complete a bad word, and looks only at words that the text's last token is in."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Word = tuple[list[int], int]
"""Tokens that have to stand there already, and the last one of the word."""


class BadWords:
    """Token sequences of which none may come to be in an output. What stands in a prompt is no part of one."""

    def __init__(self, words: Sequence[Sequence[int]], vocab: int) -> None:
        """Takes words in which an id from `vocab` on, which no model draws, makes a word harmless."""
        possible = [list(word) for word in words if word and max(word) < vocab]
        self.single = [word[0] for word in possible if len(word) == 1]
        pairs = [(last, first) for first, last in (word for word in possible if len(word) == 2)]
        self._pairs: NDArray[np.int32] = np.array(pairs, np.int32).reshape(-1, 2)
        self._by_last: dict[int, list[Word]] = {}  # by the last token of the part before a word's own last
        self._by_second: dict[int, list[Word]] = {}  # by the one before that
        for *before, last in possible:
            if before:
                self._by_last.setdefault(before[-1], []).append((before, last))
            if len(before) > 1:
                self._by_second.setdefault(before[-2], []).append((before, last))

    def completing(self, tokens: Sequence[int], begin: int) -> list[int]:
        """Returns the tokens that would now complete a word, where `tokens[begin:]` is the output so far."""
        if len(tokens) == begin:
            return self.single
        words = self._by_last.get(tokens[-1], ())
        return self.single + [last for before, last in words if _ends_with(tokens, begin, before)]

    def depending(self, tokens: Sequence[int], begin: int) -> NDArray[np.int32]:
        """Returns `[n, 2]`: tokens that would complete a word behind one that is still pending, and which that is.

        `tokens` lacks the pending one. The words of a single token do not depend on it.
        """
        longer = self._by_second.get(tokens[-1], ()) if len(tokens) > begin else ()
        found = [(last, before[-1]) for before, last in longer if _ends_with(tokens, begin, before[:-1])]
        return np.concatenate((self._pairs, np.array(found, np.int32))) if found else self._pairs


def _ends_with(tokens: Sequence[int], begin: int, end: list[int]) -> bool:
    first = len(tokens) - len(end)
    return first >= begin and tokens[first:] == end
