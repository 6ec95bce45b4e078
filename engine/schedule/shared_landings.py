"""Prompts that begin alike and are to land at the same time: one lands, the others wait for its blocks and share them.

Without this, many requests behind one system prompt would each have it sent, because none of them had landed when the
others asked for room. A follower holds nothing. When its leader has landed, or will not, it stands in the queue again
where it stood; the deadlines of the leader's handoff bound the wait.
"""

from itertools import takewhile

from engine.schedule.sequence import Sequence


class Followers:
    """Who lands which block of text, and who waits for it. The first KV group stands for all."""

    def __init__(self) -> None:
        self._leaders: dict[bytes, Sequence] = {}  # by the keys of the blocks that are to land
        self._leader_of: dict[Sequence, Sequence] = {}

    def __len__(self) -> int:
        return len(self._leader_of)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._leader_of

    def join(self, sequence: Sequence, held: int) -> bool:
        """Whether the sequence, of which `held` whole blocks are here, waits for another one's landing from now on.

        It does if at least half of its other whole blocks are about to land, so that a short common beginning, such as
        a template's, delays nobody.
        """
        missing = sequence.chains[0].keys[held:]
        coming = list(takewhile(lambda key: key in self._leaders, missing))
        if not coming or 2 * len(coming) < len(missing):
            return False
        self._leader_of[sequence] = self._leaders[coming[-1]]
        return True

    def lead(self, sequence: Sequence, held: int) -> None:
        """The sequence's whole blocks, but for the first `held`, are to land."""
        for key in sequence.chains[0].keys[held:]:
            self._leaders.setdefault(key, sequence)

    def dissolve(self, leader: Sequence) -> list[Sequence]:
        """The sequence has landed, or will not: those that waited for it."""
        for key in leader.chains[0].keys:
            if self._leaders.get(key) is leader:
                del self._leaders[key]
        followers = [each for each, of in self._leader_of.items() if of is leader]
        for each in followers:
            del self._leader_of[each]
        return followers

    def leave(self, sequence: Sequence) -> None:
        """A follower ends."""
        del self._leader_of[sequence]
