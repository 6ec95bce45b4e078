"""Lets requests wait for their turn where they would be too many, or where now is a bad moment for an objective.

Whoever waits stands in a line: tenants take turns by weight (`core/shares.py`), and of a tenant's the one that is due
first, then the one that came first. Only the head of the line is looked at, again and again; who comes meanwhile
stands behind. The line is bounded. Where it is full, the tenant that has most in it has its last one refused, so that
a burst makes only its own tenant's requests fail; whoever is refused is told when there will probably be room.
"""

import asyncio
from bisect import bisect_left, insort
from contextlib import suppress
from math import exp
from operator import attrgetter
from typing import NamedTuple

from core.shares import Shares
from gateway.errors import APIError
from gateway.requests.verdict import pause

LOOK = 0.025  # s between two looks at the head
MEMORY = 3.0  # s of waiting after which what was seen counts 1/e: answers end in bursts, so many are looked at together
UNKNOWN = 0.05  # s between two that go, while nobody knows
UNSEEN = 1.0  # s after which the first is told to come back where nobody was seen to go


class Place(NamedTuple):
    """Orders a tenant's: by when they are due, then as they came."""

    due: float  # local time, s; infinite without an objective
    number: int


class Waiting:
    """Is one request in the line."""

    def __init__(self, tenant: str, weight: float, tokens: int, place: Place) -> None:
        self.tenant = tenant
        self.weight = weight
        self.tokens = tokens  # of its prompt
        self.place = place
        self.refusal: APIError | None = None
        self.is_head = asyncio.Event()


place = attrgetter("place")


class Gate:
    """Keeps the line. All of it runs on the event loop's thread."""

    def __init__(self, most: int) -> None:
        """Lets `most` requests wait."""
        self._most = most
        self._shares = Shares()
        self._tenants: dict[str, list[Waiting]] = {}
        self._head: Waiting | None = None
        self._look = asyncio.Event()  # the head looks at once
        self._count = 0
        self.tokens = 0  # of the prompts in line
        self._came = 0
        self._since = 0.0  # local time, s: when the last one went, or the line began
        self._seen = False  # whether anybody went since the line began
        self._waited = 0.0  # s in which anybody waited, as they count now
        self._gone = 0.0  # who went meanwhile, likewise
        self._promised = 0.0  # local time, s, until which those who were refused were told to stay away

    def __len__(self) -> int:
        return self._count

    def enter(self, tenant: str, weight: float, tokens: int, due: float, now: float) -> Waiting:
        """Puts a request in line. Raises `APIError` (429) where that is full, and its tenant has most in it."""
        self._came += 1
        if not self._count:
            self._since, self._seen = now, False
        waiting = Waiting(tenant, weight, tokens, Place(due, self._came))
        own = self._tenants.setdefault(tenant, [])
        insort(own, waiting, key=place)
        self._count += 1
        self.tokens += tokens
        if self._count > self._most:
            largest = max(self._tenants.values(), key=lambda line: len(line) / line[0].weight)
            last = largest[-1] if largest is not own or waiting is own[-1] else waiting
            self.leave(last)
            last.refusal = self.full(now)
            if last is waiting:
                raise last.refusal
            last.is_head.set()  # so that it hears of it
        self._choose()
        return waiting

    def is_turn(self, waiting: Waiting | None) -> bool:
        """Tells whether a request may be looked at: the head of the line, or where nobody waits anybody."""
        return waiting is self._head

    async def turn(self, waiting: Waiting, until: float, now: float) -> None:
        """Waits until it is time to look at a request again, `until` local time at most. Raises its `APIError`."""
        head = waiting is self._head
        self._look.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(LOOK, max(0.0, until - now)) if head else max(0.0, until - now)):
                await (self._look if head else waiting.is_head).wait()
        if waiting.refusal is not None:
            raise waiting.refusal

    def look(self) -> None:
        """Has the head look again now: something has changed, such as that a request has ended."""
        self._look.set()

    def goes(self, waiting: Waiting, now: float) -> None:
        """Notes that a request leaves the line because it has begun."""
        self._waited, gone = self._known(now)
        self._gone, self._since, self._seen = gone + 1, now, True
        self._shares.charge(waiting.tenant, waiting.tokens)

    def leave(self, waiting: Waiting) -> None:
        """Takes a request out of the line, if it is still there."""
        line = self._tenants.get(waiting.tenant, [])
        at = bisect_left(line, waiting.place, key=place)
        if at < len(line) and line[at] is waiting:
            del line[at]
            self._count -= 1
            self.tokens -= waiting.tokens
            if not line:
                del self._tenants[waiting.tenant]
            self._choose()

    def full(self, now: float) -> APIError:
        """Returns the refusal of a request that cannot even wait: it is told when there will probably be room.

        Each that is refused has a moment of its own, behind those that wait and those that were told one before.
        """
        between = self._between(now)
        first = self._count * between if self._seen else max(UNSEEN, self._count * between)
        self._promised = max(self._promised, now + first) + between
        after = pause(self._promised - now)
        message = f"{self._count} requests wait, as many as may (--max-waiting); come back in {after:.2g} s"
        return APIError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after=after)

    def _between(self, now: float) -> float:
        """Returns the s between two that go; that nobody has gone for long counts too.

        Where nobody ever went, all who wait go at once at the best, when so much time has passed again.
        """
        waited, gone = self._known(now)
        if not self._gone:
            return max(UNKNOWN, 2 * waited / max(1, self._count))
        return max(self._waited / self._gone, waited / (gone + 1))

    def _known(self, now: float) -> tuple[float, float]:
        """Returns how long anybody waited, and how many went meanwhile, as they count now.

        Time in which nobody waits is not counted: nobody could have gone in it.
        """
        if not self._count:
            return self._waited, self._gone
        passed = max(0.0, now - self._since)
        keep = exp(-passed / MEMORY)
        return self._waited * keep + passed, self._gone * keep

    def _choose(self) -> None:
        if not self._tenants:
            self._head = None
            return
        turn = self._shares.turn({name: line[0].weight for name, line in self._tenants.items()})
        head = self._tenants[turn][0]
        if head is not self._head:
            if self._head is not None:
                self._head.is_head.clear()
            self._head = head
            head.is_head.set()
