"""Slots for limited concurrency, shared fairly by tenants: many jobs of one tenant do not delay another tenant.

Free slots are taken at once. Otherwise a tenant's jobs wait in order, and the next slot goes to the tenant whose turn
it is (`infra/fair_queueing/shares.py`). The number of waiting jobs of a tenant is limited.
"""

import asyncio
from collections import deque
from typing import NamedTuple

from contracts.errors import BatonError
from infra.fair_queueing.shares import Shares


class TenantShare(NamedTuple):
    """A job's tenant, and the weight of that tenant."""

    tenant: str = ""
    weight: float = 1.0


NO_TENANT = TenantShare()


class TooManyWait(BatonError):
    """A tenant has as many jobs waiting as it may."""


class _Waiting(NamedTuple):
    weight: float
    size: int
    turn: asyncio.Future[None]


class FairSlots:
    """Hands out slots, on one event loop's thread."""

    def __init__(self, count: int, max_waiting_per_tenant: int) -> None:
        """Makes `count` free slots."""
        self._free = count
        self._max_waiting_per_tenant = max_waiting_per_tenant
        self._shares = Shares()
        self._queues: dict[str, deque[_Waiting]] = {}

    async def take(self, share: TenantShare, size: int) -> None:
        """Waits for a slot. Turns are weighed by the jobs' sizes. Raises `TooManyWait`."""
        if self._free:
            self._free -= 1
            return
        queue = self._queues.setdefault(share.tenant, deque())
        if len(queue) >= self._max_waiting_per_tenant:
            raise TooManyWait(f"{len(queue)} jobs of this tenant wait, the maximum")
        waiting = _Waiting(share.weight, size, asyncio.get_running_loop().create_future())
        queue.append(waiting)
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if not waiting.turn.cancelled():
                self.give_back()  # its turn had come
            elif waiting in queue:
                queue.remove(waiting)
                if not queue:
                    del self._queues[share.tenant]
            raise

    def give_back(self) -> None:
        """Passes the slot to the tenant whose turn it is."""
        while self._queues:
            tenant = self._shares.turn({name: queue[0].weight for name, queue in self._queues.items()})
            queue = self._queues[tenant]
            waiting = queue.popleft()
            if not queue:
                del self._queues[tenant]
            if not waiting.turn.done():
                self._shares.charge(tenant, waiting.size)
                waiting.turn.set_result(None)
                return
        self._free += 1
