"""Lets tenants take turns by weight: start-time fair queuing over the tokens that are computed for each.

Each tenant has a time of its own, which what is computed for it moves on: by its tokens over its weight. Whose time is
the earliest has the next turn, and that time is the present for all. Who had less than its share has saved `SAVED` at
most: so it waits for nobody but whose turn it is, even if it sends a few prompts at once. Nobody is asked for what it
took while nobody else wanted it. Who leaves and comes again keeps its time: to send one by one gains nothing. Between
two tenants that both have work all the time, tokens over weights differ by what one had saved and a chunk of each at
most (Goyal, Vin and Cheng, "Start-time fair queuing", SIGCOMM 1996; there nothing is saved).
"""

from collections.abc import Iterable, Mapping

SAVED = 512.0
"""Tokens over the weight."""


class Shares:
    """Keeps how far each tenant has come."""

    def __init__(self) -> None:
        self._now = 0.0  # tokens over a weight
        self._until: dict[str, float] = {}  # by tenant, if it is beyond the present or has work
        self._weights: Mapping[str, float] = {}

    def turn(self, weights: Mapping[str, float]) -> str:
        """Returns whose turn it is among these tenants, of which there must be one; the others have no work now."""
        self._weights = weights
        first = min(weights, key=self._order)
        self._now = max(self._now, self._time(first))
        self._until = {name: time for name, time in self._until.items() if time > self._now - SAVED or name in weights}
        return first

    def in_order(self, tenants: Iterable[str]) -> list[str]:
        """Returns these tenants in the order in which they would have turns now; no turn is taken."""
        return sorted(tenants, key=self._order)

    def charge(self, tenant: str, tokens: int) -> None:
        """Counts tokens that were computed for a tenant, if it had work when turns were last taken."""
        if tenant in self._weights:
            self._until[tenant] = self._time(tenant) + tokens / self._weights[tenant]

    def _order(self, tenant: str) -> tuple[float, float]:
        return self._time(tenant), self._until.get(tenant, 0.0)

    def _time(self, tenant: str) -> float:
        return max(self._now - SAVED, self._until.get(tenant, 0.0))
