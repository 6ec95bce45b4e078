"""Makes scores that tell whose they are: every token's number is in its own."""

from collections.abc import Sequence

from contracts.scores import Scores, TokenScore


def scores_of(tokens: Sequence[int], top: int = 2) -> Scores:
    """The scores of these tokens: a token is the likeliest at its place, the ids behind it follow, 1/8 apart."""
    places = [[(token + rank, -(token + rank) / 8) for rank in range(top)] for token in tokens]
    return Scores.of([TokenScore(-token / 8, 1, place) for token, place in zip(tokens, places, strict=True)], top)
