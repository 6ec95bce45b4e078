"""A least-recently-used cache by sequence."""

from typing import Generic, TypeVar

Kept = TypeVar("Kept")

MAX_ABSENT_SEQUENCES = 256
"""Maximum number of entries for sequences outside the step: some wait, most are gone."""


class Recent(Generic[Kept]):
    """Maps sequences to values; forgets the least recently used."""

    def __init__(self, room: int = MAX_ABSENT_SEQUENCES) -> None:
        self._room = room
        self._kept: dict[int, Kept] = {}  # in the order in which they were used

    def __len__(self) -> int:
        return len(self._kept)

    def use(self, sequence: int) -> Kept | None:
        """Returns the value of a sequence and marks it as most recently used; None if there is none."""
        kept = self._kept.pop(sequence, None)
        if kept is not None:
            self._kept[sequence] = kept
        return kept

    def keep(self, sequence: int, kept: Kept) -> None:
        self._kept.pop(sequence, None)
        self._kept[sequence] = kept

    def forget(self, used: int) -> None:
        """Drops the oldest entries beyond the `used` sequences of this step plus the allowance."""
        while len(self._kept) > used + self._room:
            del self._kept[next(iter(self._kept))]
