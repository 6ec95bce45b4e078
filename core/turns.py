"""Lets tenants take turns where only a few pieces of work are done at once, so that one tenant's many delay no other's.

Free slots are taken at once. Where there is none, a tenant's works wait in order, and the next slot is the one's whose
turn it is (`core/shares.py`). What one tenant may have waiting is bounded.
"""

import asyncio
from collections import deque
from typing import NamedTuple

from core.errors import BatonError
from core.shares import Shares


class Party(NamedTuple):
    """Names whose work it is, and what it weighs beside others'."""

    tenant: str = ""
    weight: float = 1.0


NOBODY = Party()


class TooManyWait(BatonError):
    """A tenant has as many works waiting as it may."""


class _Waiting(NamedTuple):
    weight: float
    size: int
    turn: asyncio.Future[None]


class Slots:
    """Gives out slots. All of it runs on one event loop's thread."""

    def __init__(self, count: int, each: int) -> None:
        """Has `count` slots. `each`: works that one tenant may have waiting."""
        self._free = count
        self._each = each
        self._shares = Shares()
        self._lines: dict[str, deque[_Waiting]] = {}

    async def take(self, party: Party, size: int) -> None:
        """Waits for a slot, for a work of a size that turns are counted by. Raises `TooManyWait`."""
        if self._free:
            self._free -= 1
            return
        line = self._lines.setdefault(party.tenant, deque())
        if len(line) >= self._each:
            raise TooManyWait(f"{len(line)} works of this tenant wait, as many as may")
        waiting = _Waiting(party.weight, size, asyncio.get_running_loop().create_future())
        line.append(waiting)
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if not waiting.turn.cancelled():
                self.give_back()  # its turn had come
            elif waiting in line:
                line.remove(waiting)
                if not line:
                    del self._lines[party.tenant]
            raise

    def give_back(self) -> None:
        """Ends what `take` began: whose turn it is has the slot."""
        while self._lines:
            tenant = self._shares.turn({name: line[0].weight for name, line in self._lines.items()})
            line = self._lines[tenant]
            waiting = line.popleft()
            if not line:
                del self._lines[tenant]
            if not waiting.turn.done():
                self._shares.charge(tenant, waiting.size)
                waiting.turn.set_result(None)
                return
        self._free += 1
