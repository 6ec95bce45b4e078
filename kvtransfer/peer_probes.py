"""Finds out which decode workers this one cannot connect to, says so once, and tries them until it can.

A firewall between two hosts tells nobody: a connection that it swallows looks like a peer that thinks. So whenever a
link begins, and when it has chosen a port for its payloads, that port is tried by a connection of its own. Where none
stands within the deadline, the link ends with a reason that says so, and no other begins until one does.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from infra.network.probing import obstacle
from infra.process.tasks import Tasks
from infra.redis.records import UnreachedPeer

MAX_PROBES = 64  # peers that are tried again; there are more only where the network is gone
PROBE_INTERVAL_S = 0.25  # seconds until a port that could not be connected to is tried again, before anything is said …
RECHECK_INTERVAL_S = 1.0  # … and after that
log = logging.getLogger("baton.handoff")


class PeerProbes:
    """Keeps the peers that were not reached, by epoch. `me` names this worker to people."""

    def __init__(
        self,
        me: str,
        deadline: float,
        remember: float,
        missed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Gives a connection `deadline` seconds, and tries a peer that it was not made to for `remember` more.

        `missed` is called with the epoch of a peer once it is clear that it cannot be connected to.
        """
        self._tell = missed
        self._me = me
        self._deadline = deadline
        self._remember = remember
        self._clock = clock
        self._missed: dict[str, str] = {}  # the address that cannot be connected to, by the peer's epoch
        self._tried: set[tuple[str, str]] = set()  # peers and addresses that are tried now
        self._tasks = Tasks("looking for decode workers")

    def check(self, peer: str, address: str, works: Callable[[], bool]) -> None:
        """Begins to find out whether `address` can be connected to. `works` tells if anything has passed there."""
        if (peer, address) not in self._tried and len(self._tried) < MAX_PROBES:
            self._tried.add((peer, address))
            self._tasks.start(self._try(peer, address, works))

    def misses(self, peer: str) -> bool:
        """Tells whether this worker cannot be connected to."""
        return peer in self._missed

    def unreached(self) -> tuple[UnreachedPeer, ...]:
        """Lists the peers that cannot be connected to."""
        return tuple(UnreachedPeer(peer, address) for peer, address in self._missed.items())

    async def close(self) -> None:
        """Tries nobody any more."""
        await self._tasks.close()

    async def _try(self, peer: str, address: str, works: Callable[[], bool]) -> None:
        try:
            until = self._clock() + self._deadline
            why = await self._obstacle(address, until, PROBE_INTERVAL_S)
            if not why or works():  # what works was only slow: this process may have stood still
                return
            self._missed[peer] = address
            log.warning("%s cannot connect to decode worker %s at %s: %s", self._me, peer, address, why)
            self._tell(peer)
            why = await self._obstacle(address, self._clock() + self._remember, RECHECK_INTERVAL_S)
            if not why:
                log.info("%s can connect to decode worker %s at %s again", self._me, peer, address)
        finally:
            self._tried.discard((peer, address))
            if self._missed.get(peer) == address:
                del self._missed[peer]

    async def _obstacle(self, address: str, until: float, pause: float) -> str:
        """Tries until then; returns what was in the way at last, or nothing as soon as nothing is."""
        while True:
            why = await obstacle(address, max(PROBE_INTERVAL_S, min(self._deadline, until - self._clock())))
            if not why or self._clock() + pause >= until:
                return why
            await asyncio.sleep(pause)
