"""Lets prompts with a common beginning that are to land at the same time share a landing: one lands, the others wait.

Without this, many requests with one system prompt would each have it sent, because none had landed when the others
asked for blocks. Waiting sequences hold no blocks. When the landing is over, completed or not, they return to their
places in the queue; the deadlines of the handoff bound the wait.
"""

from itertools import takewhile

from engine.schedule.sequence import Sequence


class SharedLandings:
    """Blocks of text that are about to land, and the sequences that wait for them, by the chains of one group."""

    def __init__(self, group: int = 0) -> None:
        self._group = group
        self._landing: dict[bytes, Sequence] = {}  # by the key of a block that is about to land
        self._waiting: dict[Sequence, Sequence] = {}  # by waiting sequence, the one that lands

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    def wait(self, sequence: Sequence, held: int) -> bool:
        """Has a sequence with `held` whole blocks here wait for another one's landing, if that brings enough.

        At least half of its other whole blocks have to be about to land, so that a short common beginning, such as a
        template's, delays no sequence. Returns whether the sequence waits.
        """
        missing = sequence.chains[self._group].keys[held:]
        coming = list(takewhile(lambda key: key in self._landing, missing))
        if not coming or 2 * len(coming) < len(missing):
            return False
        self._waiting[sequence] = self._landing[coming[-1]]
        return True

    def announce(self, sequence: Sequence, held: int) -> None:
        """Notes that the sequence's whole blocks, but for the first `held`, are about to land."""
        for key in sequence.chains[self._group].keys[held:]:
            self._landing.setdefault(key, sequence)

    def conclude(self, landed: Sequence) -> list[Sequence]:
        """Forgets a landing that is over, and returns the sequences that waited for it."""
        for key in landed.chains[self._group].keys:
            if self._landing.get(key) is landed:
                del self._landing[key]
        freed = [each for each, awaited in self._waiting.items() if awaited is landed]
        for each in freed:
            del self._waiting[each]
        return freed

    def leave(self, sequence: Sequence) -> None:
        del self._waiting[sequence]
