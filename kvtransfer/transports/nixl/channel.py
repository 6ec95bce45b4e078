"""A channel over NIXL: payloads are copied into a ring here, and written into the peer's ring by RDMA or TCP.

A payload's header is sent over the control socket once the payload is in the peer's memory. Nothing is encrypted.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

import zmq.asyncio

from contracts.kinds import Transport
from contracts.messages.handoff import Layer, NixlMemory
from contracts.messages.wire import encode
from infra.network.sockets import send_now
from kvtransfer.digest import copy_and_digest
from kvtransfer.transports.channel import SentPayload
from kvtransfer.transports.nixl.agents import NixlAgents
from kvtransfer.transports.nixl.ring import NixlError, NixlRing

FRAMES_PER_PAYLOAD = 4
"""In units of a socket's payload. Sending copies the bytes itself here, so larger payloads save other costs."""
POLL_S = 0.0002  # between two checks of unfinished writes
GREETING_SPAN = (0, 1)  # offset and size of a write that shows, before there are payloads, that the peer has the token
log = logging.getLogger("baton.handoff")


class NixlChannel:
    """A `Channel` that takes no payloads until it is connected. If its connection breaks, its link ends."""

    transport: Transport = "nixl"
    sealed = False

    def __init__(
        self, agents: NixlAgents, peer: NixlMemory, token: str, control: zmq.asyncio.Socket, frame: int
    ) -> None:
        """Begins to connect; `frame` is the payload size for sockets, in bytes. Raises `ValueError` for a bad token."""
        self.capacity = peer.size
        self.frame = max(frame, min(FRAMES_PER_PAYLOAD * frame, peer.size // 4))
        self._agents = agents
        self._peer = peer
        self._token = bytes.fromhex(token)
        self._control = control
        self._ring: NixlRing | None = None  # once connected
        self._headers: deque[Layer] = deque()  # of payloads not announced yet, oldest first
        self._written = 0  # of these, the payloads whose writes have begun
        self._wake = asyncio.Event()
        self._closed = False
        agents.tasks.start(self._run())

    def send(self, header: Layer, views: Sequence[memoryview], blocks: Sequence[int] = ()) -> SentPayload | None:
        if self._ring is None:
            return None
        digest = copy_and_digest(header, views, self._ring.views(header.offset, header.size))
        self._headers.append(header)
        self._wake.set()
        return SentPayload(digest, None)

    async def _run(self) -> None:
        ring = None
        try:
            ring = await self._agents.call(NixlRing, self._agents, self._peer.size)
            await self._agents.call(ring.connect, self._peer, self._token)
            arrived = await self._agents.call(ring.write, [GREETING_SPAN])
            while not arrived and not self._closed:
                await asyncio.sleep(POLL_S)
                arrived = await self._agents.call(ring.write, [])
            self._ring = None if self._closed else ring
            while not self._closed:
                self._wake.clear()
                written, self._written = self._written, len(self._headers)
                new = [(each.offset, each.size) for each in list(self._headers)[written:]]
                arrived = await self._agents.call(ring.write, new)
                if arrived:
                    await self._announce(arrived)
                elif self._headers:
                    await asyncio.sleep(POLL_S)
                else:
                    await self._wake.wait()
        except NixlError as error:
            log.warning("KV cannot be sent over nixl: %s", error)
        finally:
            self._ring = None
            if ring is not None:
                await self._agents.call(ring.close)

    async def _announce(self, arrived: int) -> None:
        """Sends the headers of the first `arrived` payloads, which are in the peer's memory."""
        for _ in range(arrived):
            while not self._closed and not send_now(self._control, [encode(self._headers[0])]):
                await asyncio.sleep(POLL_S)
            self._headers.popleft()
            self._written -= 1

    def close(self) -> None:
        """Ends the channel: its task deletes the agent, in the agents' thread."""
        self._closed = True
        self._ring = None
        self._wake.set()
