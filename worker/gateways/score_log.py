"""Scores of a growing answer, any part of which can be sent again."""

from contracts.scores import Scores


class ScoreLog:
    """The scores of one answer's tokens, appended without copying."""

    __slots__ = ("_parts", "_top")

    def __init__(self, top: int) -> None:
        """`top`: alternatives of each token."""
        self._top = top
        self._parts = tuple(bytearray() for _ in range(4))  # as in `Scores`

    def replace(self, begin: int, scores: Scores) -> None:
        assert scores.top == self._top, "scores of one request have one shape"
        sizes = self._sizes()
        given = (scores.chosen, scores.ranks, scores.top_ids, scores.tops)
        for part, size, data in zip(self._parts, sizes, given, strict=True):
            del part[begin * size :]
            part += data

    def part(self, begin: int, end: int) -> Scores:
        both = zip(self._parts, self._sizes(), strict=True)
        return Scores(self._top, *(bytes(part[begin * size : end * size]) for part, size in both))

    def _sizes(self) -> tuple[int, int, int, int]:
        return 4, 4, 4 * self._top, 4 * self._top
