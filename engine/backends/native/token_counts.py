"""Counts the tokens of one text as it grows: a list of those that are in it, and how often each is in its output."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FEWEST = 64
"""Places that a list has at least, so that it seldom grows."""


class TokenCounts:
    """Holds int32 `ids` and `counts`, whose first `len` entries are of the tokens so far; each token is there once."""

    def __init__(self, prompt: Sequence[int]) -> None:
        """Begins with the tokens of a prompt, which count as 0."""
        tokens = dict.fromkeys(prompt)
        self._places = dict(zip(tokens, range(len(tokens)), strict=True))
        self.ids: NDArray[np.int32] = np.zeros(max(FEWEST, 2 * len(tokens)), np.int32)
        self.counts: NDArray[np.int32] = np.zeros_like(self.ids)
        self.ids[: len(tokens)] = np.fromiter(tokens, np.int32)

    def __len__(self) -> int:
        return len(self._places)

    def add(self, tokens: Sequence[int]) -> None:
        """Counts the next tokens of the output."""
        places = self._places
        for token in tokens:
            place = places.get(token)
            if place is None:
                place = places[token] = len(places)
                if place == len(self.ids):
                    self.ids = np.concatenate((self.ids, np.zeros_like(self.ids)))
                    self.counts = np.concatenate((self.counts, np.zeros_like(self.counts)))
                self.ids[place] = token
            self.counts[place] += 1
