"""Lets prompts that begin alike and are to land at the same time share a landing: one lands, the others wait for it.

Without this, many requests behind one system prompt would each have it sent, because none of them had landed when the
others asked for room. Who waits holds no blocks. When the landing is over, whether it came to its end or not, those
that waited for it stand in the queue again where they stood; the deadlines of the handoff bound the wait.
"""

from itertools import takewhile

from engine.schedule.sequence import Sequence


class SharedLandings:
    """Knows which blocks of text are about to land, and which sequences wait for that, by the chains of one group."""

    def __init__(self, group: int = 0) -> None:
        """Begins with none. `group`: index of the KV group whose blocks count."""
        self._group = group
        self._landing: dict[bytes, Sequence] = {}  # by the key of a block that is about to land: whose landing it is
        self._waiting: dict[Sequence, Sequence] = {}  # by each sequence that waits: the one whose landing it waits for

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    def wait(self, sequence: Sequence, held: int) -> bool:
        """Lets a sequence, of which `held` whole blocks are here, wait for another one's landing if that is worth it.

        It is if at least half of its other whole blocks are about to land, so that a short common beginning, such as
        a template's, delays nobody. Returns whether the sequence waits.
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
        """Forgets a landing that is over, and returns those that waited for it, who wait no longer."""
        for key in landed.chains[self._group].keys:
            if self._landing.get(key) is landed:
                del self._landing[key]
        freed = [each for each, awaited in self._waiting.items() if awaited is landed]
        for each in freed:
            del self._waiting[each]
        return freed

    def leave(self, sequence: Sequence) -> None:
        """Forgets a sequence that waits, because it ends."""
        del self._waiting[sequence]
