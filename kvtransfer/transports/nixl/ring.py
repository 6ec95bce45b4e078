"""One end of a link over NIXL: an agent of its own, and a ring of memory that it has registered.

Byte n of a link lies at n modulo the rings' size, at both ends, so a write names an offset and a size. The writer
touches the reader's ring alone. An agent serves one link, so that deleting it, when the link ends, is the proof that
nothing writes into the ring any more: neither a process that hangs, nor a late packet.
"""

import mmap
from collections import deque
from typing import Any

import numpy as np

from contracts.errors import BatonError
from contracts.messages.handoff import NixlMemory
from kvtransfer.transports.nixl.agents import NixlAgents

MEMORY_KIND = "DRAM"
DONE, UNDER_WAY = "DONE", "PROC"


class NixlError(BatonError):
    """A link over NIXL is broken: its peer is gone, or cannot be reached."""


class NixlRing:
    """A registered ring of memory, and its agent. Used in the agents' thread only, except for `views`."""

    def __init__(self, agents: NixlAgents, size: int) -> None:
        """Makes an agent, and its ring of `size` bytes. Raises `NixlError`."""
        self.size = size
        self._memory = memoryview(mmap.mmap(-1, size))
        self.address = int(np.frombuffer(self._memory, np.uint8).ctypes.data)
        try:
            self._agent: Any = agents.agent()
            self._registration = self._agent.register_memory([(self.address, size, 0, "")], MEMORY_KIND)
        except Exception as error:  # the library's exceptions have no common base
            raise NixlError(f"no agent: {error!r}") from None
        self._peer: Any = None  # its name, once connected
        self._peer_address = 0
        self._writes: deque[list[Any]] = deque()  # handles of each payload's parts, oldest first

    def description(self) -> NixlMemory:
        """Returns the agent's metadata, address and size, by which a peer writes into this ring."""
        return NixlMemory(self._agent.get_agent_metadata(), self.address, self.size)

    def views(self, offset: int, size: int) -> list[memoryview]:
        """Returns the memory of `size` bytes from the link's byte `offset` on: one view, or two around the end."""
        return [self._memory[begin:end] for begin, end in self._parts(offset, size)]

    def connect(self, peer: NixlMemory, token: bytes) -> None:
        """Connects to the peer's agent, and sends it the token of its Offer. Raises `NixlError`."""
        try:
            self._peer = self._agent.add_remote_agent(peer.agent)
            self._peer_address = peer.address
            self._agent.send_notif(self._peer, token)
        except Exception as error:
            raise NixlError(f"no connection: {error!r}") from None

    def write(self, payloads: list[tuple[int, int]]) -> int:
        """Begins to write payloads, (offset, size), into the peer's ring. Raises `NixlError`.

        Returns how many payloads, of these and earlier calls, have arrived in the peer's memory since the last call.
        They arrive in the order of the calls.
        """
        try:
            for offset, size in payloads:
                self._writes.append([self._begin(begin, end - begin) for begin, end in self._parts(offset, size)])
            arrived = 0
            while self._writes and all([self._is_done(each) for each in self._writes[0]]):
                for each in self._writes.popleft():
                    self._agent.release_xfer_handle(each)
                arrived += 1
            return arrived
        except NixlError:
            raise
        except Exception as error:
            raise NixlError(f"no writing: {error!r}") from None

    def progress(self) -> list[bytes]:
        """Lets the library write arrived payloads into the ring; returns the tokens that writers have sent."""
        try:
            notifications: dict[str, list[bytes]] = self._agent.get_new_notifs()
        except Exception as error:
            raise NixlError(f"no progress: {error!r}") from None
        return [each for texts in notifications.values() for each in texts]

    def close(self) -> None:
        """Deletes the agent: nothing is written from or into the ring any more. Its memory goes with the last view."""
        self._writes.clear()
        self._agent.deregister_memory(self._registration)
        del self._agent
        self._memory.release()

    def _begin(self, at: int, size: int) -> Any:
        local = self._agent.get_xfer_descs([(self.address + at, size, 0)], MEMORY_KIND)
        remote = self._agent.get_xfer_descs([(self._peer_address + at, size, 0)], MEMORY_KIND)
        handle = self._agent.initialize_xfer("WRITE", local, remote, self._peer)
        self._agent.transfer(handle)
        return handle

    def _is_done(self, handle: Any) -> bool:
        state = self._agent.check_xfer_state(handle)
        if state not in (DONE, UNDER_WAY):
            raise NixlError(f"a write ended as {state}")
        return bool(state == DONE)

    def _parts(self, offset: int, size: int) -> list[tuple[int, int]]:
        begin = offset % self.size
        parts = [(begin, min(begin + size, self.size)), (0, begin + size - self.size)]
        return [(first, last) for first, last in parts if last > first]
