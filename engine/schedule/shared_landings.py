"""Shares landings of prompts with a common beginning: one sequence lands, and the others wait for its KV.

Otherwise many requests with one system prompt would each receive its KV, because none had landed when the others asked
for blocks. Waiting sequences hold no blocks. When the landing completes or fails, they return to their places in the
queue; the handoff's deadlines bound the wait.
"""

from itertools import takewhile

from engine.schedule.sequence import Sequence


class SharedLandings:
    """Blocks of text that are about to land, and the sequences that wait for them, by the chains of one group."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._landing: dict[bytes, Sequence] = {}  # by the key of a block that is about to land
        self._waiting: dict[Sequence, Sequence] = {}  # waiting sequence → landing sequence

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    def wait(self, sequence: Sequence, held: int) -> bool:
        """Lets a sequence with `held` whole blocks here wait for another landing, if that brings enough blocks.

        At least half of its other whole blocks must be about to land, so that a short common beginning, such as a chat
        template's, delays no sequence. Returns whether the sequence waits.
        """
        missing = sequence.chains[self._group].keys[held:]
        coming = list(takewhile(lambda key: key in self._landing, missing))
        if not coming or 2 * len(coming) < len(missing):
            return False
        self._waiting[sequence] = self._landing[coming[-1]]
        return True

    def announce(self, sequence: Sequence, held: int) -> None:
        """Records that the sequence's whole blocks, except the first `held`, are about to land."""
        for key in sequence.chains[self._group].keys[held:]:
            self._landing.setdefault(key, sequence)

    def conclude(self, landed: Sequence) -> list[Sequence]:
        """Removes a landing that has ended, and returns the sequences that waited for it."""
        for key in landed.chains[self._group].keys:
            if self._landing.get(key) is landed:
                del self._landing[key]
        freed = [each for each, awaited in self._waiting.items() if awaited is landed]
        for each in freed:
            del self._waiting[each]
        return freed

    def leave(self, sequence: Sequence) -> None:
        del self._waiting[sequence]
