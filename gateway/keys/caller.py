"""The sender of a request, as every route knows it."""

from msgspec import Struct

from contracts.slo import NO_OBJECTIVE, Objective
from gateway.errors import APIError
from infra.fair_queueing.turns import TenantShare


class RateLimits(Struct, frozen=True):
    """Rate limits of a key over all gateways; 0: no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0  # prompt and answer tokens
    concurrency: int = 0  # requests in progress

    def __bool__(self) -> bool:
        return self != NO_LIMITS


NO_LIMITS = RateLimits()


class Caller(Struct, frozen=True):
    """The sender of a request, and the objective of this request.

    With API keys, `key` is the public part of a valid key, and `tenant` is its owner. Without keys nothing is checked,
    and `token` is the name that the client gives itself.
    """

    key: str = ""
    tenant: str = ""
    token: str = ""
    operator: bool = True  # may see the data of other tenants
    priority: int | None = None  # lowest number (highest urgency) allowed; None: any
    weight: float = 1.0  # fair share of its tenant
    objective: Objective = NO_OBJECTIVE  # of this request
    granted: Objective = NO_OBJECTIVE  # default of its key and of the gateway
    limits: RateLimits = NO_LIMITS

    @property
    def tenant_share(self) -> TenantShare:
        return TenantShare(self.tenant or self.token, self.weight)

    @property
    def promise(self) -> Objective:
        """Returns the objective for which other requests are held back: this one's, no stricter than `granted`.

        Any client may send headers; without this bound, they would reserve a worker for it.
        """
        return self.objective.bounded_by(self.granted)

    def allowed(self, priority: int | None) -> int:
        """Returns the request's priority, given its `priority` field. Raises `APIError` (403) if it is not allowed."""
        if self.priority is None:
            return priority or 0
        if priority is None:
            return max(0, self.priority)
        if priority < self.priority:
            message = f"priority: {priority} is lower than {self.priority}, the lowest that this key may ask for"
            raise APIError(403, message, param="priority", code="priority_not_allowed")
        return priority


ANY_CALLER = Caller()
