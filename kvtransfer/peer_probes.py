"""Detects unreachable decode workers, reports them once, and probes them until they can be reached.

A firewall may swallow connections silently, so the peer looks slow. Therefore, when a link begins, and when it has
chosen a port for payloads, the port is probed with a separate connection. If none succeeds by the deadline, the link
ends with a clear reason, and no new link begins until a probe succeeds.
"""

import asyncio
import logging
from collections.abc import Callable

from infra.network.probing import obstacle
from infra.process.tasks import Tasks
from infra.redis.records import UnreachedPeer

MAX_PROBES = 64  # concurrent probes; more are needed only if the network is down
PROBE_INTERVAL_S = 0.25  # between two probes before a peer counts as unreachable
RECHECK_INTERVAL_S = 1.0  # between two later probes
log = logging.getLogger("baton.handoff")


class PeerProbes:
    """The unreachable peers, by epoch. `me` names this worker in the log."""

    def __init__(
        self,
        me: str,
        deadline: float,
        remember: float,
        missed: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """A peer is unreachable if no connection succeeds for `deadline` seconds; it is probed for `remember` more.

        `missed` is called with the epoch of a peer that turns out to be unreachable.
        """
        self._tell = missed
        self._me = me
        self._deadline = deadline
        self._remember = remember
        self._clock = clock
        self._missed: dict[str, str] = {}  # addresses of unreachable peers, by epoch
        self._tried: set[tuple[str, str]] = set()  # peers and addresses that are being probed
        self._tasks = Tasks("looking for decode workers")

    def check(self, peer: str, address: str, works: Callable[[], bool]) -> None:
        if (peer, address) not in self._tried and len(self._tried) < MAX_PROBES:
            self._tried.add((peer, address))
            self._tasks.start(self._try(peer, address, works))

    def misses(self, peer: str) -> bool:
        return peer in self._missed

    def unreached(self) -> tuple[UnreachedPeer, ...]:
        return tuple(UnreachedPeer(peer, address) for peer, address in self._missed.items())

    async def close(self) -> None:
        await self._tasks.close()

    async def _try(self, peer: str, address: str, works: Callable[[], bool]) -> None:
        try:
            until = self._clock() + self._deadline
            why = await self._obstacle(address, until, PROBE_INTERVAL_S)
            if not why or works():  # a link that works was only slow: this process may have been suspended
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
        """Probes until `until`; returns the last failure, or "" as soon as a probe succeeds."""
        while True:
            why = await obstacle(address, max(PROBE_INTERVAL_S, min(self._deadline, until - self._clock())))
            if not why or self._clock() + pause >= until:
                return why
            await asyncio.sleep(pause)
