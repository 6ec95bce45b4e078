"""Decides whose prompt is computed next in a step, and how many tokens of it.

The most urgent prompt leads, be it in progress or at the head of the line. One that is longer than the step leaves a
share of it to shorter ones, the shortest first: they wait for few tokens, and it waits a little longer. To give way to
a prompt of the same length would help nobody.
"""

from collections.abc import Iterator

from engine.schedule.lifecycle import Lifecycle
from engine.schedule.line import Line, urgency
from engine.schedule.sequence import Sequence

SHORTER = 0.5


class Turns:
    """Lends the tokens of a step to prompts."""

    def __init__(self, line: Line, lifecycle: Lifecycle, shorter: float) -> None:
        """Serves the prompts in `line`, too. `shorter`: share of a step that a long prompt leaves to shorter ones."""
        self._line = line
        self._lifecycle = lifecycle
        self._shorter = shorter

    def take(self, prompts: list[Sequence], room: int, now: float, step: int) -> Iterator[tuple[Sequence, int]]:
        """Yields whose turn it is, and how many of the `room` tokens it may have, while there are any.

        `prompts` are in progress; `step` is being planned. Who asks for the next one has planned the one before. At
        last those are admitted whose KV lands: they need no room.
        """
        prompts = sorted(prompts, key=lambda each: (urgency(each, now), each.id))
        while room > 0 and (leader := self._leader(prompts, now, step)) is not None:
            if leader.landing:
                continue
            left, before = leader.left, leader.planned
            kept = min(int(room * self._shorter), self._wanted(prompts, left, now)) if left > room else 0
            yield leader, room - kept
            room -= leader.planned - before
            while kept and room > 0 and (each := self._shortest(prompts, left, now)) is not None:
                if each in prompts:
                    prompts.remove(each)
                elif not self._lifecycle.admit(each, now, step):
                    break
                before = each.planned
                yield each, room
                room -= each.planned - before
        while len(self._line) and self._line.first(now).landing and self._lifecycle.admit_head(now, step):
            pass

    def _leader(self, prompts: list[Sequence], now: float, step: int) -> Sequence | None:
        """Takes the most urgent of those in progress, or admits the head of the line before it."""
        if prompts:
            head = self._line.first(now) if len(self._line) else None
            if head is None or head.landing or urgency(head, now) >= urgency(prompts[0], now):
                return prompts.pop(0)
            if not self._lifecycle.surely_fits(head):
                return prompts.pop(0)
        return self._lifecycle.admit_head(now, step)

    def _wanted(self, prompts: list[Sequence], than: int, now: float) -> int:
        """Counts the tokens of those that have fewer left `than` so many."""
        shorter = sum(each.left for each in prompts if each.left < than)
        waiting = self._may_pass(than, now)
        return shorter + (len(self._line) * waiting.to_compute if waiting is not None else 0)

    def _shortest(self, prompts: list[Sequence], than: int, now: float) -> Sequence | None:
        """Returns the one with the fewest tokens left, if those are fewer `than` so many."""
        waiting = self._may_pass(than, now)
        shorter = [each for each in prompts if each.left < than]
        first = min(shorter, key=lambda each: each.left, default=None)
        if waiting is None or (first is not None and first.left <= waiting.to_compute):
            return first
        return waiting

    def _may_pass(self, than: int, now: float) -> Sequence | None:
        """Returns the shortest that waits, if it is shorter `than` so many tokens, and may come before its turn.

        Nobody passes a head of the line for which there may be too few blocks: that would have to wait for ever.
        """
        waiting = self._line.shortest(now)
        if waiting is None or waiting.landing or waiting.to_compute >= than:
            return None
        return waiting if self._lifecycle.surely_fits(self._line.first(now)) else None
