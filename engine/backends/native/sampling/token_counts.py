"""Counts the tokens of a growing text: a list of its distinct tokens, with their counts in the output."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_LIST_CAPACITY = 64
"""Minimum capacity of a list, so that it seldom grows."""


class Listed(NamedTuple):
    """Tokens that are in a text, and how often each is in its output."""

    ids: NDArray[np.int32]
    counts: NDArray[np.int32]


class TokenCounts:
    """Int32 `ids` and `counts`, whose first `len` entries are of the tokens so far; each token is there once."""

    def __init__(self, prompt: Sequence[int]) -> None:
        tokens = dict.fromkeys(prompt)
        self._indices = dict(zip(tokens, range(len(tokens)), strict=True))
        self.ids: NDArray[np.int32] = np.zeros(max(MIN_LIST_CAPACITY, 2 * len(tokens)), np.int32)
        self.counts: NDArray[np.int32] = np.zeros_like(self.ids)
        self.ids[: len(tokens)] = np.fromiter(tokens, np.int32)

    def __len__(self) -> int:
        return len(self._indices)

    def add(self, tokens: Sequence[int]) -> None:
        """Counts the next tokens of the output."""
        indices = self._indices
        for token in tokens:
            index = indices.get(token)
            if index is None:
                index = indices[token] = len(indices)
                if index == len(self.ids):
                    self.ids = np.concatenate((self.ids, np.zeros_like(self.ids)))
                    self.counts = np.concatenate((self.counts, np.zeros_like(self.counts)))
                self.ids[index] = token
            self.counts[index] += 1

    def listed(self) -> Listed:
        """Returns the entries, which the next `add` may change."""
        return Listed(self.ids[: len(self)], self.counts[: len(self)])

    def behind(self, tokens: Sequence[int]) -> Listed:
        """Returns separate entries for the text extended by further output `tokens`."""
        new = [token for token in dict.fromkeys(tokens) if token not in self._indices]
        ids = np.concatenate((self.ids[: len(self)], np.array(new, np.int32)))
        counts = np.concatenate((self.counts[: len(self)], np.zeros(len(new), np.int32)))
        for token in tokens:
            counts[self._indices[token] if token in self._indices else len(self) + new.index(token)] += 1
        return Listed(ids, counts)
