"""A simulated worker's answers to a gateway's pings, made only where the gateway reads them.

A worker that rests would give a thousand answers that differ only by their time. So the answers up to now are made when
the gateway looks, or when the worker is about to change: it has not changed since the time of any of these answers.
"""

from collections import deque
from typing import NamedTuple

from contracts.ids import Ticket
from gateway.workers.liveness import PING_INTERVAL_S
from pricing.routes.backlog import Backlog
from simulation.worker import SimulatedWorker


class PingAnswer(NamedTuple):
    """What a worker answers to a ping."""

    arrives_at: float  # s
    backlog: Backlog
    taken: Ticket


class PingAnswers:
    """The answers of one worker, which is asked every `PING_INTERVAL_S`; an answer takes `front_s` seconds."""

    def __init__(self, worker: SimulatedWorker, front_s: float, now: float) -> None:
        self.next_at = now
        """Time of the first ping that is not answered, s."""
        self._worker = worker
        self._front_s = front_s
        self._under_way: deque[PingAnswer] = deque()  # answers on their way, or arrived and not read yet

    def answer(self, now: float) -> None:
        """Answers the pings up to now, before the worker changes, and forgets answers that a newer one hides."""
        if not self._worker.alive:
            return
        while (at := self.next_at) <= now:
            self.next_at += PING_INTERVAL_S
            if self.next_at + self._front_s > now:
                self._under_way.append(PingAnswer(at + self._front_s, self._worker.backlog(at), self._worker.taken))
        while len(self._under_way) > 1 and self._under_way[1].arrives_at <= now:
            self._under_way.popleft()

    def newest(self, now: float) -> PingAnswer | None:
        """Returns the newest answer that has arrived; None: the gateway has read it before."""
        arrives_at = self._under_way[0].arrives_at if self._under_way else self.next_at + self._front_s
        if now < arrives_at:
            return None
        self.answer(now)
        found = None
        while self._under_way and self._under_way[0].arrives_at <= now:
            found = self._under_way.popleft()
        return found
