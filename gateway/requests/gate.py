"""The gate: new requests wait here while the system is full, or while their objective could not be kept.

Requests wait in line: tenants take turns by weight (`infra/fair_queueing/shares.py`), and a tenant's requests are
ordered by due time, then by arrival. Only the head of the line is checked. While the system is full, the head stays. If
an objective holds the head back, it moves aside, and the next request is checked: a request that waits for a better
moment does not block others.

Requests aside come back into line: a few of them whenever an answer has ended, of different tenants first, and each by
itself after a time that grows with their number, which limits the checks per second. The number of a tenant's requests
aside is limited, and so is the number of all waiting requests: beyond it, the last request of the tenant with most
requests here is refused, so that a burst harms only its own tenant. Each refused client is told when there will
probably be room.
"""

import asyncio
from bisect import bisect_left, insort
from contextlib import suppress
from itertools import chain, islice, zip_longest
from math import exp, inf
from operator import attrgetter
from typing import NamedTuple

from gateway.errors import APIError
from gateway.requests.verdict import pause
from infra.fair_queueing.shares import Shares

LOOK_INTERVAL_S = 0.025  # seconds between two checks of the head, and of a request aside while few are aside
LOOKS_PER_INTERVAL = 8  # average number of checks of requests aside in `LOOK_INTERVAL_S` seconds, whatever their number
MAX_CALLED_BACK = 4  # maximum number of requests aside that are checked because an answer has ended
ASIDE_SHARE = 0.5  # maximum share of the waiting requests (--max-waiting) that one tenant may have aside
MEMORY_TIME_S = 3.0
"""Time constant in seconds of the measured rate: several answers often end together, and count as one burst."""
UNKNOWN_S = 0.05  # assumed seconds between two requests that begin, while nothing is measured
UNSEEN_S = 1.0  # seconds after which the first refused client may come back, if no request was seen to begin


class DueOrder(NamedTuple):
    """Order of a tenant's requests: by due time, then by arrival."""

    due: float  # local time, s
    number: int


class WaitingRequest:
    """A waiting request: in line, or aside."""

    def __init__(self, tenant: str, weight: float, tokens: int, place: DueOrder) -> None:
        self.tenant = tenant
        self.weight = weight
        self.tokens = tokens  # of its prompt
        self.place = place
        self.is_aside = False
        self.refusal: APIError | None = None
        self.is_head = asyncio.Event()


place = attrgetter("place")


class WaitingByTenant:
    """Waiting requests by tenant, each tenant's in order."""

    def __init__(self) -> None:
        self.by_tenant: dict[str, list[WaitingRequest]] = {}
        self.count = 0

    def insert(self, waiting: WaitingRequest) -> None:
        insort(self.by_tenant.setdefault(waiting.tenant, []), waiting, key=place)
        self.count += 1

    def remove(self, waiting: WaitingRequest) -> bool:
        """Removes a request; returns whether it was here."""
        own = self.by_tenant.get(waiting.tenant, [])
        at = bisect_left(own, waiting.place, key=place)
        if at == len(own) or own[at] is not waiting:
            return False
        del own[at]
        self.count -= 1
        if not own:
            del self.by_tenant[waiting.tenant]
        return True

    def of(self, tenant: str) -> list[WaitingRequest]:
        return self.by_tenant.get(tenant, [])

    def weights(self) -> dict[str, float]:
        return {tenant: own[0].weight for tenant, own in self.by_tenant.items()}


class Gate:
    """All waiting requests. Runs on the event loop's thread only."""

    def __init__(self, most: int) -> None:
        """`most`: maximum number of waiting requests."""
        self._most = most
        self._most_aside = max(1, int(ASIDE_SHARE * most))  # for one tenant
        self._shares = Shares()
        self._line = WaitingByTenant()
        self._aside = WaitingByTenant()
        self._head: WaitingRequest | None = None
        self._look = asyncio.Event()  # set: the head is checked at once
        self.tokens = 0  # of the prompts that wait
        self._came = 0
        self._since = 0.0  # local time, s: when the last request began, or the first one came to wait
        self._seen = False  # whether any request has begun since then
        self._waited = 0.0  # s in which any request waited, with exponential decay
        self._gone = 0.0  # requests that began in that time, with the same decay
        self._promised = 0.0  # local time, s, at which the last refused client was told to come back

    def __len__(self) -> int:
        return self._line.count + self._aside.count

    def enter(self, tenant: str, weight: float, tokens: int, due: float, now: float) -> WaitingRequest:
        """Puts a request in line. Raises `APIError` (429) if the gate is full and its tenant has most requests here."""
        self._came += 1
        if not len(self):
            self._since, self._seen = now, False
        waiting = WaitingRequest(tenant, weight, tokens, DueOrder(due, self._came))
        self._line.insert(waiting)
        self.tokens += tokens
        if len(self) > self._most:
            last = self._last_of_largest(waiting)
            self.leave(last)
            last.refusal = self.full(now)
            if last is waiting:
                raise last.refusal
            last.is_head.set()  # wakes its task, which raises the refusal
        self._choose()
        return waiting

    def is_turn(self, waiting: WaitingRequest | None) -> bool:
        """Returns whether a request may be checked: the head, or without a head any request that does not wait yet."""
        return waiting is self._head

    def steps_aside(self, waiting: WaitingRequest) -> None:
        """Moves a request aside until a better moment, so that the next one is checked.

        Raises `APIError` (429) if its tenant has too many requests aside.
        """
        if not self._line.remove(waiting):
            return
        if len(self._aside.of(waiting.tenant)) >= self._most_aside:
            self.tokens -= waiting.tokens
            self._choose()
            raise self._too_many_aside()
        waiting.is_aside = True
        self._aside.insert(waiting)
        self._choose()

    async def turn(self, waiting: WaitingRequest, until: float, now: float) -> None:
        """Waits until a request should be checked again, at most until local time `until`. Raises its refusal."""
        event, seconds = self.next_check(waiting)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, max(0.0, until - now))):
                await event.wait()
        self.checked(waiting)

    def next_check(self, waiting: WaitingRequest) -> tuple[asyncio.Event, float]:
        """Returns what asks for a request's next check, and the seconds after which it comes anyway."""
        if waiting is self._head:
            self._look.clear()
            return self._look, LOOK_INTERVAL_S
        crowd = max(1.0, self._aside.count / LOOKS_PER_INTERVAL)
        return waiting.is_head, LOOK_INTERVAL_S * crowd if waiting.is_aside else inf

    def checked(self, waiting: WaitingRequest) -> None:
        """Puts a request that waited aside back in line. Raises its refusal."""
        self._comes_back(waiting)
        if waiting.refusal is not None:
            raise waiting.refusal

    def look(self) -> None:
        """Has the head and some requests aside checked now, for instance because an answer has ended."""
        self._look.set()
        if not self._aside.count:
            return
        tenants = [self._aside.of(tenant) for tenant in self._shares.in_order(self._aside.weights())]
        first_of_each = chain.from_iterable(zip_longest(*[own[:MAX_CALLED_BACK] for own in tenants[:MAX_CALLED_BACK]]))
        for waiting in list(islice((each for each in first_of_each if each is not None), MAX_CALLED_BACK)):
            self._comes_back(waiting)

    def goes(self, waiting: WaitingRequest, now: float) -> None:
        self._waited, gone = self._known(now)
        self._gone, self._since, self._seen = gone + 1, now, True
        self._shares.charge(waiting.tenant, waiting.tokens)

    def leave(self, waiting: WaitingRequest) -> None:
        if self._line.remove(waiting) or self._aside.remove(waiting):
            self.tokens -= waiting.tokens
            waiting.is_aside = False
            self._choose()

    def full(self, now: float) -> APIError:
        """Returns the refusal of a request that may not even wait, with the time when there will probably be room.

        Each refused client gets its own moment, after the waiting requests and the clients refused before.
        """
        between = self._between(now)
        first = len(self) * between if self._seen else max(UNSEEN_S, len(self) * between)
        self._promised = max(self._promised, now + first) + between
        after = pause(self._promised - now)
        message = f"{len(self)} requests wait, the maximum (--max-waiting); come back in {after:.2g} s"
        return APIError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after=after)

    def _too_many_aside(self) -> APIError:
        what = f"{self._most_aside} requests of this tenant wait for a moment that suits their objective"
        message = f"{what}, as many as may (half of --max-waiting)"
        kind, code = "rate_limit_error", "objective_out_of_reach"
        return APIError(429, message, kind=kind, code=code, retry_after=UNSEEN_S)

    def _between(self, now: float) -> float:
        """Returns the average seconds between two requests that begin, including the time since the last one.

        If none has begun yet, the waiting requests are expected to begin together, after as long a wait again.
        """
        waited, gone = self._known(now)
        if not self._gone:
            return max(UNKNOWN_S, 2 * waited / max(1, len(self)))
        return max(self._waited / self._gone, waited / (gone + 1))

    def _known(self, now: float) -> tuple[float, float]:
        """Returns the waited seconds and the number of requests that began, both decayed to `now`.

        Time in which no request waits does not count: none could have begun in it.
        """
        if not len(self):
            return self._waited, self._gone
        passed = max(0.0, now - self._since)
        keep = exp(-passed / MEMORY_TIME_S)
        return self._waited * keep + passed, self._gone * keep

    def _last_of_largest(self, newest: WaitingRequest) -> WaitingRequest:
        """Returns the last request of the tenant with most requests per weight; `newest` if that is its tenant."""

        def size(tenant: str) -> tuple[float, bool]:
            own = [*self._line.of(tenant), *self._aside.of(tenant)]
            return len(own) / own[0].weight, tenant == newest.tenant

        largest = max({**self._line.by_tenant, **self._aside.by_tenant}, key=size)
        if largest == newest.tenant:
            return newest
        return max((*self._line.of(largest)[-1:], *self._aside.of(largest)[-1:]), key=place)

    def _comes_back(self, waiting: WaitingRequest) -> None:
        if waiting.is_aside and self._aside.remove(waiting):
            waiting.is_aside = False
            self._line.insert(waiting)
            self._choose()

    def _choose(self) -> None:
        head = self._line.of(self._shares.turn(self._line.weights()))[0] if self._line.count else None
        if head is not self._head:
            if self._head is not None:
                self._head.is_head.clear()
            self._head = head
            if head is not None:
                head.is_head.set()
