"""Simulated time: actions in the order of their times, and of equal times in the order in which they were planned."""

import heapq
import sys
from collections.abc import Callable


class Timeline:
    """A heap of actions that are due. `now`: s since the simulation's start."""

    def __init__(self) -> None:
        self.now = 0.0
        self.actions = 0
        """Number of actions that were carried out."""
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._soon = -sys.maxsize  # number of the newest action that comes before all others of its time

    def __len__(self) -> int:
        """Number of planned actions."""
        return len(self._planned)

    def clock(self) -> float:
        return self.now

    def at(self, due: float, action: Callable[[], None]) -> None:
        """Plans an action; a time that has passed means now."""
        self._count += 1
        heapq.heappush(self._planned, (due if due > self.now else self.now, self._count, action))

    def soon(self, action: Callable[[], None]) -> None:
        """Plans an action for now, before all others of this time but earlier ones of its kind."""
        self._soon += 1
        heapq.heappush(self._planned, (self.now, self._soon, action))

    def first_at(self, due: float, action: Callable[[], None]) -> None:
        """Plans an action that comes before all others of its time. Only one such action may be planned at a time."""
        heapq.heappush(self._planned, (max(due, self.now), 0, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def run(self, over: Callable[[], bool]) -> None:
        """Carries out actions until `over`, which is asked after each, or until none is left."""
        planned, pop = self._planned, heapq.heappop
        while planned and not over():
            self.now, _, action = pop(planned)
            self.actions += 1
            action()


class SimulatedClock:
    """The clocks of a simulated worker: the server's time and its own are the same."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def now(self) -> float:
        return self._timeline.now

    def local(self, deadline: float) -> float:
        return deadline
