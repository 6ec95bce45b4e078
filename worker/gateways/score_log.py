"""Keeps the scores of a growing answer, so that any part of them can be sent, and sent again."""

from contracts.scores import Scores


class ScoreLog:
    """Holds the scores of one answer's tokens. Appending costs what is appended, however long the answer is."""

    __slots__ = ("_parts", "_top")

    def __init__(self, top: int) -> None:
        """Begins empty. `top`: alternatives of each token."""
        self._top = top
        self._parts = tuple(bytearray() for _ in range(4))  # as in `Scores`

    def replace(self, begin: int, scores: Scores) -> None:
        """Puts these in the place of what is known of tokens `begin` and later."""
        assert scores.top == self._top, "scores of one request have one shape"
        sizes = self._sizes()
        given = (scores.chosen, scores.ranks, scores.top_ids, scores.tops)
        for part, size, data in zip(self._parts, sizes, given, strict=True):
            del part[begin * size :]
            part += data

    def part(self, begin: int, end: int) -> Scores:
        """Returns the scores of tokens `begin` … `end` - 1."""
        both = zip(self._parts, self._sizes(), strict=True)
        return Scores(self._top, *(bytes(part[begin * size : end * size]) for part, size in both))

    def _sizes(self) -> tuple[int, int, int, int]:
        """Returns the bytes that one token has in each part."""
        return 4, 4, 4 * self._top, 4 * self._top
