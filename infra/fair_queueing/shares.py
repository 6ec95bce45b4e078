"""Start-time fair queuing: tenants take turns by weight, measured in computed tokens.

Each tenant has a virtual time, which advances by computed tokens / weight. The tenant with the earliest virtual time
has the next turn, and its time becomes the current virtual time. A tenant that used less than its share lags behind by
at most `MAX_SAVED_TOKENS`, so a burst of a few prompts waits only for the running turn. Tokens that a tenant used while
no other tenant had work are not charged later. A tenant that leaves and returns keeps its virtual time, so sending
requests one by one gains nothing. For two tenants that always have work, tokens / weight differ by at most the saved
tokens and one chunk of each (Goyal, Vin and Cheng, "Start-time fair queuing", SIGCOMM 1996, which has no savings).
"""

from collections.abc import Iterable, Mapping

MAX_SAVED_TOKENS = 512.0  # in tokens / weight


class Shares:
    """The virtual times of all tenants."""

    def __init__(self) -> None:
        self._now = 0.0  # current virtual time, tokens / weight
        self._until: dict[str, float] = {}  # virtual time of each tenant with work or ahead of the current time
        self._weights: Mapping[str, float] = {}

    def turn(self, weights: Mapping[str, float]) -> str:
        """Returns the tenant with the next turn, among tenants with work, given with their weights; at least one."""
        self._weights = weights
        first = min(weights, key=self._order)
        self._now = max(self._now, self._time(first))
        self._until = {
            name: time for name, time in self._until.items() if time > self._now - MAX_SAVED_TOKENS or name in weights
        }
        return first

    def in_order(self, tenants: Iterable[str]) -> list[str]:
        return sorted(tenants, key=self._order)

    def charge(self, tenant: str, tokens: int) -> None:
        """Charges a tenant for computed tokens, if it had work at the last turn."""
        if tenant in self._weights:
            self._until[tenant] = self._time(tenant) + tokens / self._weights[tenant]

    def _order(self, tenant: str) -> tuple[float, float]:
        return self._time(tenant), self._until.get(tenant, 0.0)

    def _time(self, tenant: str) -> float:
        return max(self._now - MAX_SAVED_TOKENS, self._until.get(tenant, 0.0))
