"""Keeps something for each of the sequences of late."""

from typing import Generic, TypeVar

Kept = TypeVar("Kept")

MAX_ABSENT_SEQUENCES = 256
"""Sequences that something is kept for although they are not in the step: some wait, most are gone."""


class Recent(Generic[Kept]):
    """Maps sequences to what is kept for them; forgets those that were not used for longest."""

    def __init__(self, room: int = MAX_ABSENT_SEQUENCES) -> None:
        self._room = room
        self._kept: dict[int, Kept] = {}  # in the order in which they were used

    def __len__(self) -> int:
        return len(self._kept)

    def use(self, sequence: int) -> Kept | None:
        """Returns what is kept for a sequence, which is the newest now; None: nothing is."""
        kept = self._kept.pop(sequence, None)
        if kept is not None:
            self._kept[sequence] = kept
        return kept

    def keep(self, sequence: int, kept: Kept) -> None:
        """Keeps something for a sequence, which is the newest now."""
        self._kept.pop(sequence, None)
        self._kept[sequence] = kept

    def forget(self, used: int) -> None:
        """Forgets the oldest, where there are more than `used` sequences, those of this step, and the room beside."""
        while len(self._kept) > used + self._room:
            del self._kept[next(iter(self._kept))]
