"""An attempt is one job on one pair of workers; the retry budget limits repeated attempts.

Pure: time is an argument.
"""

from contracts.ids import NO_TICKET, Ticket
from contracts.messages.job import Body
from pricing.routes.correction import Forecast
from pricing.routes.route import Route

REFILL_TIME_S = 60.0  # s in which an empty budget fills up again


class Attempt:
    """One job and its route, shared by all samples of the job."""

    __slots__ = (
        "added",
        "adds",
        "begun",
        "body",
        "end",
        "ended",
        "expected",
        "forecast",
        "number",
        "route",
        "samples",
        "started",
        "ticket",
    )

    def __init__(self, number: int, route: Route, now: float, samples: int = 1) -> None:
        self.number = number  # counted over the whole request, so that it identifies one job
        self.samples = samples  # of its job
        self.route = route
        self.begun = now  # local time, s
        self.ended = now  # local time at which the last of its samples left it, s
        self.end = ""  # the reason
        self.forecast: Forecast | None = (
            None  # of the first token, by the workers' costs; None: unknown, or the token came
        )
        self.expected = 0.0  # corrected forecast of the first token, s from `begun`
        self.adds = 0  # number of times that the job was added to its worker's stream
        self.added = now  # local time of the last addition, s
        self.ticket = NO_TICKET  # of the last of them
        self.started = False  # whether a worker has taken the job
        self.body: Body | None = None  # stands in the job for a long prompt, which its worker asks for

    def ends(self, now: float, reason: str) -> None:
        """Records that a sample has left the attempt; the last one's reason remains."""
        self.ended, self.end = now, reason

    def add(self, now: float, ticket: Ticket) -> None:
        """Records that the job was added to its worker's stream, for the first time or again."""
        self.adds += 1
        self.added = now
        self.ticket = ticket

    def waits(self, taken: Ticket) -> bool:
        """Returns whether the job still waits on its worker's stream; the worker has read it up to `taken`."""
        return not self.started and self.adds > 0 and self.ticket > taken


class RetryBudget:
    """A token bucket of `capacity` retries over all requests: enough for a worker's death, not for a storm."""

    def __init__(self, capacity: int, now: float) -> None:
        self._capacity = float(capacity)
        self._left = self._capacity
        self._at = now

    def take(self, now: float) -> bool:
        """Takes one retry; returns False if none is left."""
        self._left = min(self._capacity, self._left + (now - self._at) * self._capacity / REFILL_TIME_S)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
