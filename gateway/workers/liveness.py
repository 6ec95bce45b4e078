"""Decides whether a worker is suspect or dead, from pings and heartbeats. Pure: time is an argument.

A missing heartbeat is only a suspicion, since Redis may be away. A worker is dead if a ping stays unanswered for a
second, if its connection ended and does not return soon, or if its step is far overdue. A pause of this process itself
kills no worker: time between two looks counts only up to a bound.
"""

import enum

GREET_INTERVAL_S = 0.05  # s until the first answer
PING_INTERVAL_S = 0.25  # s, which also tells the worker that this gateway is alive
PING_REPEAT_S = 0.2  # s until an unanswered ping is repeated
SUSPECT_AFTER_S = 0.4  # s without an answer
DEAD_AFTER_S = 1.0  # s without an answer; an I/O thread that has a processor answers in far less
HANGS_AFTER_MS = 10_000.0  # ms overdue from which on an engine hangs: its worker allows ten of the largest steps
RECONNECT_WITHIN_S = 0.5  # s within which a connection that ended has to return: a dying process ends it for ever
MAX_LOOK_INTERVAL_S = 0.2  # s between two looks that count; after a longer pause answers may be unread


class WorkerHealth(enum.Enum):
    """State of a worker, by its answers."""

    CONNECTING = enum.auto()  # no answer yet
    ALIVE = enum.auto()
    SUSPECT = enum.auto()  # a heartbeat or an answer is missing; its sequences stay
    DEAD = enum.auto()


class Liveness:
    """Health of one life of one worker. All times are local, in seconds."""

    def __init__(self, now: float) -> None:
        self.health = WorkerHealth.CONNECTING
        self.hangs = False  # dead because its engine hangs
        self.beating = True  # whether its heartbeat is in Redis
        self._looked = now  # when `look` was called last
        self._pinged = now  # when the last ping left
        self._unanswered: float | None = now  # when the first ping since the last answer left; at first, the Hello
        self._cut: float | None = None  # when the connection ended, if it has not returned
        self._number = 0  # of the last ping

    @property
    def takes_work(self) -> bool:
        """Returns whether new work may be sent there: it lives, and at most an answer to a ping is missing.

        Answers are late whenever the machine is busy for a moment.
        """
        there = self.beating and self._cut is None
        return self.health is WorkerHealth.ALIVE or (self.health is WorkerHealth.SUSPECT and there)

    def heard(self, now: float) -> None:
        self._unanswered = None
        if self.health is not WorkerHealth.DEAD:
            self.health = WorkerHealth.ALIVE if self.beating and self._cut is None else WorkerHealth.SUSPECT

    def greeted(self) -> None:
        self._cut = None

    def disconnected(self, now: float) -> None:
        """Records the end of the connection. Messages from before may still be read: they are no sign of life."""
        if self.health in (WorkerHealth.ALIVE, WorkerHealth.SUSPECT) and self._cut is None:
            self._cut = now
            self.health = WorkerHealth.SUSPECT

    def pong(self, step_due_ms: float) -> None:
        """Takes the milliseconds until the engine should answer; an engine that is long overdue hangs."""
        if step_due_ms < -HANGS_AFTER_MS:
            self.health = WorkerHealth.DEAD
            self.hangs = True

    def look(self, now: float) -> int | None:
        """Decides on suspicion and death; returns the number of a ping to send now, or None. Call it often."""
        pause = max(0.0, now - self._looked - MAX_LOOK_INTERVAL_S)
        self._looked = now
        if self.health is WorkerHealth.DEAD:
            return None
        if self._unanswered is not None:
            self._unanswered += pause
        if self._cut is not None:
            self._cut += pause
        if self._cut is not None and now - self._cut >= RECONNECT_WITHIN_S:
            self.health = WorkerHealth.DEAD
            return None
        silent = now - self._unanswered if self._unanswered is not None else 0.0
        suspicious = silent >= SUSPECT_AFTER_S or not self.beating or self._cut is not None
        if silent >= DEAD_AFTER_S and self._known():
            self.health = WorkerHealth.DEAD
            return None
        if self._known():
            self.health = WorkerHealth.SUSPECT if suspicious else WorkerHealth.ALIVE
        if now - self._pinged < self._patience(suspicious):
            return None
        self._pinged = now
        self._unanswered = now if self._unanswered is None else self._unanswered
        self._number += 1
        return self._number

    def _patience(self, suspicious: bool) -> float:
        if self.health is WorkerHealth.CONNECTING or self._cut is not None:
            return GREET_INTERVAL_S
        return PING_REPEAT_S if self._unanswered is not None or suspicious else PING_INTERVAL_S

    def _known(self) -> bool:
        """Returns False for a worker with a heartbeat and no answer yet: it may not be reachable yet."""
        return self.health is not WorkerHealth.CONNECTING or not self.beating
