"""An attempt is one job on one pair of workers; the budget says how many may be repeated. Pure: time is an argument."""

from contracts.ids import NO_TICKET, Ticket
from contracts.messages.job import Body
from pricing.correction import Forecast
from pricing.route import Route

REFILL_TIME_S = 60.0  # s in which an empty budget fills up again


class Attempt:
    """Holds one job and its route, shared by its samples: what is true of the job is true for all of them."""

    __slots__ = ("added", "adds", "begun", "body", "expected", "forecast", "number", "route", "started", "ticket")

    def __init__(self, number: int, route: Route, now: float) -> None:
        self.number = number  # counted over the whole request, so that it names one job, whichever samples that has
        self.route = route
        self.begun = now  # local time, s
        self.forecast: Forecast | None = None  # of its first token, by the workers' costs; None: not known, or it came
        self.expected = 0.0  # s from then to the first token, with what has been learned of such forecasts
        self.adds = 0  # times that the job was put on its worker's stream
        self.added = now  # local time of the last of them, s
        self.ticket = NO_TICKET  # of the last of them
        self.started = False  # whether a worker has taken the job
        self.body: Body | None = None  # stands in the job for a long prompt, which its worker asks for

    def add(self, now: float, ticket: Ticket) -> None:
        """Notes that the job is on its worker's stream, for the first time or again."""
        self.adds += 1
        self.added = now
        self.ticket = ticket

    def waits(self, taken: Ticket) -> bool:
        """Tells whether the job is still in line on its worker's stream, of which all up to `taken` is gone."""
        return not self.started and self.adds > 0 and self.ticket > taken


class RetryBudget:
    """Bounds retries over all requests by a bucket of `capacity`: a worker's death is absorbed, a storm is not fed."""

    def __init__(self, capacity: int, now: float) -> None:
        self._capacity = float(capacity)
        self._left = self._capacity
        self._at = now

    def take(self, now: float) -> bool:
        """Takes one retry out; returns False if none is left."""
        self._left = min(self._capacity, self._left + (now - self._at) * self._capacity / REFILL_TIME_S)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
