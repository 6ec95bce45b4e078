"""Holds log-probabilities of tokens, packed, on their way from an engine to a client."""

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

MOST_TOP = 20
"""Alternatives that may be told of each token, at most."""


class TokenScore(NamedTuple):
    """Says how likely one token was, and which ones were the likeliest at its place, the first before the second."""

    logprob: float
    rank: int  # 1: no other token was likelier
    top: list[tuple[int, float]]  # token ids and their log-probabilities


class Scores(Struct, frozen=True, array_like=True):
    """Holds the log-probabilities of some tokens in order, and at each place those of the `top` likeliest tokens.

    Numbers are little-endian, without padding, so that a message carries thousands as it carries one.
    """

    top: Annotated[int, Meta(ge=0, le=MOST_TOP)]
    chosen: bytes  # fp32 [tokens]
    ranks: bytes  # int32 [tokens]
    top_ids: bytes  # int32 [tokens, top]
    tops: bytes  # fp32 [tokens, top], falling

    @staticmethod
    def of(
        chosen: NDArray[np.float32], ranks: NDArray[np.int32], top_ids: NDArray[np.int32], tops: NDArray[np.float32]
    ) -> "Scores":
        """Packs arrays of these shapes: `[tokens]`, `[tokens]`, `[tokens, top]`, `[tokens, top]`."""
        assert top_ids.shape == tops.shape == (len(chosen), top_ids.shape[1]) and len(chosen) == len(ranks)
        return Scores(
            top_ids.shape[1],
            chosen.astype("<f4").tobytes(),
            ranks.astype("<i4").tobytes(),
            top_ids.astype("<i4").tobytes(),
            tops.astype("<f4").tobytes(),
        )

    @staticmethod
    def joined(parts: Sequence["Scores"]) -> "Scores":
        """Joins the scores of tokens that follow each other; all tell of equally many alternatives."""
        assert len({part.top for part in parts}) == 1, "scores of one request have one shape"
        fields = ("chosen", "ranks", "top_ids", "tops")
        return Scores(parts[0].top, *(b"".join(getattr(part, name) for part in parts) for name in fields))

    def __len__(self) -> int:
        return len(self.chosen) // 4

    def part(self, begin: int, end: int) -> "Scores":
        """Returns the scores of tokens `begin` … `end` - 1."""
        one, many = slice(4 * begin, 4 * end), slice(4 * begin * self.top, 4 * end * self.top)
        return Scores(self.top, self.chosen[one], self.ranks[one], self.top_ids[many], self.tops[many])

    def __iter__(self) -> Iterator[TokenScore]:
        chosen, ranks = np.frombuffer(self.chosen, "<f4").tolist(), np.frombuffer(self.ranks, "<i4").tolist()
        shape = len(self), self.top
        ids = np.frombuffer(self.top_ids, "<i4").reshape(shape).tolist()
        tops = np.frombuffer(self.tops, "<f4").reshape(shape).tolist()
        for logprob, rank, row, values in zip(chosen, ranks, ids, tops, strict=True):
            yield TokenScore(logprob, rank, list(zip(row, values, strict=True)))
