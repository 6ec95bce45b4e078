"""Packed log-probabilities of tokens, on their way from an engine to a client."""

import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

MAX_TOP_LOGPROBS = 20  # most alternatives reported for a token

MAX_PROMPT_SCORES = 1 << 19
"""Most log-probabilities of one prompt: tokens x (alternatives + 1). Packed, these are 4 MiB."""


class TokenScore(NamedTuple):
    """A token's log-probability, and those of the likeliest tokens at its position, in falling order."""

    logprob: float
    rank: int  # 1: the likeliest token
    top: list[tuple[int, float]]  # token ids and log-probabilities


class Scores(Struct, frozen=True, array_like=True):
    """Log-probabilities of tokens in order, with those of the `top` likeliest tokens at each position.

    Numbers are little-endian without padding, so that a message carries thousands cheaply.
    """

    top: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
    chosen: bytes  # fp32 [tokens]
    ranks: bytes  # int32 [tokens]
    top_ids: bytes  # int32 [tokens, top]
    tops: bytes  # fp32 [tokens, top], falling

    def __post_init__(self) -> None:
        """Raises `ValueError` if the parts belong to different numbers of tokens."""
        tokens, rest = divmod(len(self.chosen), 4)
        if rest or len(self.ranks) != 4 * tokens or not len(self.top_ids) == len(self.tops) == 4 * tokens * self.top:
            raise ValueError(f"scores of {tokens} tokens whose parts have other lengths")

    @staticmethod
    def of(tokens: Sequence[TokenScore], top: int) -> "Scores":
        """Packs the scores of tokens with `top` alternatives each."""
        alternatives = [each for token in tokens for each in token.top]
        assert len(alternatives) == top * len(tokens)
        return Scores(
            top,
            struct.pack(f"<{len(tokens)}f", *[token.logprob for token in tokens]),
            struct.pack(f"<{len(tokens)}i", *[token.rank for token in tokens]),
            struct.pack(f"<{len(alternatives)}i", *[number for number, _ in alternatives]),
            struct.pack(f"<{len(alternatives)}f", *[logprob for _, logprob in alternatives]),
        )

    @staticmethod
    def joined(parts: Sequence["Scores"]) -> "Scores":
        assert len({part.top for part in parts}) == 1, "scores of one request have one shape"
        fields = ("chosen", "ranks", "top_ids", "tops")
        return Scores(parts[0].top, *(b"".join(getattr(part, name) for part in parts) for name in fields))

    def __len__(self) -> int:
        return len(self.chosen) // 4

    def part(self, begin: int, end: int) -> "Scores":
        one, many = slice(4 * begin, 4 * end), slice(4 * begin * self.top, 4 * end * self.top)
        return Scores(self.top, self.chosen[one], self.ranks[one], self.top_ids[many], self.tops[many])

    def __iter__(self) -> Iterator[TokenScore]:
        count, top = len(self), self.top
        chosen, ranks = struct.unpack(f"<{count}f", self.chosen), struct.unpack(f"<{count}i", self.ranks)
        ids, tops = struct.unpack(f"<{count * top}i", self.top_ids), struct.unpack(f"<{count * top}f", self.tops)
        for place, (logprob, rank) in enumerate(zip(chosen, ranks, strict=True)):
            own = slice(place * top, (place + 1) * top)
            yield TokenScore(logprob, rank, list(zip(ids[own], tops[own], strict=True)))
