"""Holds who asks: what every route knows of the one who has sent a request."""

from msgspec import Struct

from contracts.slo import NO_OBJECTIVE, Objective
from gateway.errors import APIError
from infra.fair_queueing.turns import TenantShare


class RateLimits(Struct, frozen=True):
    """Bounds what a key may ask for, over all gateways; 0: any number."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0  # of prompts and answers
    concurrency: int = 0  # requests in progress

    def __bool__(self) -> bool:
        return self != NO_LIMITS


NO_LIMITS = RateLimits()


class Caller(Struct, frozen=True):
    """Describes whoever has sent a request, and what this request wants.

    Where there are keys, `key` is the public part of a valid one, and `tenant` whose it is. Where there are none,
    nothing is checked, and what a client calls itself is its `token`.
    """

    key: str = ""
    tenant: str = ""
    token: str = ""
    operator: bool = True  # may see what is of others as well
    priority: int | None = None  # the lowest that it may ask for; None: any
    weight: float = 1.0  # of its tenant, beside others
    objective: Objective = NO_OBJECTIVE  # of this request
    granted: Objective = NO_OBJECTIVE  # by its key and by the gateway, to requests whose headers say nothing
    limits: RateLimits = NO_LIMITS

    @property
    def party(self) -> TenantShare:
        return TenantShare(self.tenant or self.token, self.weight)

    @property
    def promise(self) -> Objective:
        """Returns the objective for which others are held back: this request's, no stricter than what was granted.

        Any client may send headers; without this bound, they would reserve a worker for it.
        """
        return self.objective.bounded_by(self.granted)

    def allowed(self, priority: int | None) -> int:
        """Returns the priority of a request that asks for this one. Raises `APIError` (403) if it asks for too much."""
        if self.priority is None:
            return priority or 0
        if priority is None:
            return max(0, self.priority)
        if priority < self.priority:
            message = f"priority: {priority} is lower than {self.priority}, the lowest that this key may ask for"
            raise APIError(403, message, param="priority", code="priority_not_allowed")
        return priority


ANY_CALLER = Caller()
