"""The receiving ends of a decode worker's links over NIXL: each a ring into which the link's sender writes.

Without RDMA, UCX writes into the ring only while this process calls its progress function; with RDMA it needs these
calls to connect. So while links are open, a task makes them: often while payloads arrive, otherwise now and then.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from hmac import compare_digest

from contracts.messages.handoff import NixlMemory
from kvtransfer.transports.nixl.agents import NixlAgents
from kvtransfer.transports.nixl.ring import NixlError, NixlRing

BUSY_POLL_S, IDLE_POLL_S = 0.0002, 0.02  # between two requests for progress
BUSY_S = 1.0  # after a payload: more may come
MAX_LANDINGS = 256  # each has an agent: memory, a connection, a registration
log = logging.getLogger("baton.handoff")


class NixlLanding:
    """One link's ring, which is made in the background."""

    def __init__(self, token: str) -> None:
        self.memory: NixlMemory | None = None  # for the Offer, once the ring is there
        self.is_over = False  # the ring could not be made, or was deleted
        self.is_admitted = False  # a writer has sent the token of the Offer
        self.ring: NixlRing | None = None
        self.on_made: Callable[[], None] = lambda: None  # called when the ring is made, or could not be made
        self._token = bytes.fromhex(token)

    def progress(self) -> None:
        """Lets the library write arrived payloads, and reads tokens. Runs in the agents' thread."""
        if self.ring is None or self.is_over:
            return
        try:
            tokens_match = [compare_digest(each, self._token) for each in self.ring.progress()]
        except NixlError as error:
            log.warning("KV cannot be received over nixl: %s", error)
            self.is_over = True
            return
        self.is_admitted = self.is_admitted or any(tokens_match)


class NixlLandings:
    """Makes the rings, calls their agents' progress functions, and deletes them."""

    def __init__(self, agents: NixlAgents, expects: Callable[[], bool]) -> None:
        """`expects` says whether payloads may come."""
        self._agents = agents
        self._expects = expects
        self._landings: dict[NixlLanding, None] = {}
        self._busy_until = 0.0  # s
        self._wake = asyncio.Event()
        self._closed = False
        agents.tasks.start(self._poll())

    def begin(self, token: str, size: int) -> NixlLanding | None:
        """Begins to make a ring for the sender that will send `token`; None if there are too many rings."""
        if len(self._landings) >= MAX_LANDINGS:
            return None
        landing = NixlLanding(token)
        self._landings[landing] = None
        self._agents.tasks.start(self._make(landing, size))
        return landing

    def expect_payloads(self) -> None:
        """Polls often for a while: payloads arrive, or may arrive soon."""
        self._busy_until = time.monotonic() + BUSY_S
        self._wake.set()

    def read_token(self, landing: NixlLanding) -> None:
        """Reads a token that has arrived, and blocks the caller meanwhile: to be called once for each link."""
        self._agents.call_now(landing.progress)

    def end(self, landing: NixlLanding) -> None:
        """Deletes a ring's agent: then its sender cannot write any more."""
        landing.is_over = True
        if landing in self._landings:
            del self._landings[landing]
            self._agents.tasks.start(self._delete(landing))

    async def _make(self, landing: NixlLanding, size: int) -> None:
        try:
            ring = await self._agents.call(NixlRing, self._agents, size)
        except NixlError as error:
            log.warning("KV cannot be received over nixl: %s", error)
            if not landing.is_over:
                landing.is_over = True
                landing.on_made()
            return
        landing.ring = ring
        if landing.is_over:  # meanwhile
            await self._agents.call(ring.close)
            return
        landing.memory = await self._agents.call(ring.description)
        self.expect_payloads()
        if not landing.is_over:  # meanwhile
            landing.on_made()

    async def _delete(self, landing: NixlLanding) -> None:
        ring, landing.ring = landing.ring, None
        if ring is not None:  # otherwise `_make` deletes it
            await self._agents.call(ring.close)

    async def _poll(self) -> None:
        while not self._closed:
            self._wake.clear()
            landings = [each for each in self._landings if each.memory is not None and not each.is_over]
            if landings:
                await self._agents.call(_progress, landings)
            if landings and time.monotonic() < self._busy_until:
                await asyncio.sleep(BUSY_POLL_S)
            elif landings and (self._expects() or not all(each.is_admitted for each in landings)):
                await asyncio.sleep(IDLE_POLL_S)
            else:
                await self._wake.wait()

    def close(self) -> None:
        for each in list(self._landings):
            self.end(each)
        self._closed = True
        self._wake.set()


def _progress(landings: list[NixlLanding]) -> None:
    for each in landings:
        each.progress()
