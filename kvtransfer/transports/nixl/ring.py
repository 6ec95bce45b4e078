"""One end of a link over NIXL: an agent of its own, and a ring of memory that it has registered.

Byte n of a link lies at n modulo the rings' size, at both ends, so a write names an offset and a size. The writer
touches the reader's ring alone. An agent serves one link, so that deleting it, when the link ends, is the proof that
nothing writes into the ring any more: not a process that hangs, nor a packet that is late.
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
    """Is used in the agents' thread alone, except for `views`."""

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

    def described(self) -> NixlMemory:
        """Returns what a peer needs to write into this ring."""
        return NixlMemory(self._agent.get_agent_metadata(), self.address, self.size)

    def views(self, offset: int, size: int) -> list[memoryview]:
        """Returns the memory of `size` bytes from the link's byte `offset` on: one view, or two around the end."""
        return [self._memory[begin:end] for begin, end in self._parts(offset, size)]

    def connect(self, peer: NixlMemory, token: bytes) -> None:
        """Connects to the peer's agent, and says the token of its Offer. Raises `NixlError`."""
        try:
            self._peer = self._agent.add_remote_agent(peer.agent)
            self._peer_address = peer.address
            self._agent.send_notif(self._peer, token)
        except Exception as error:
            raise NixlError(f"no connection: {error!r}") from None

    def write(self, payloads: list[tuple[int, int]]) -> int:
        """Begins to write payloads, (offset, size), into the peer's ring; returns how many of all are there now.

        They count in their order. A payload that counts lies in the peer's memory. Raises `NixlError`.
        """
        try:
            for offset, size in payloads:
                self._writes.append([self._begin(begin, end - begin) for begin, end in self._parts(offset, size)])
            there = 0
            while self._writes and all([self._is_done(each) for each in self._writes[0]]):
                for each in self._writes.popleft():
                    self._agent.release_xfer_handle(each)
                there += 1
            return there
        except NixlError:
            raise
        except Exception as error:
            raise NixlError(f"no writing: {error!r}") from None

    def progress(self) -> list[bytes]:
        """Lets the library take what has come; returns the tokens that writers have said."""
        try:
            said: dict[str, list[bytes]] = self._agent.get_new_notifs()
        except Exception as error:
            raise NixlError(f"no progress: {error!r}") from None
        return [each for texts in said.values() for each in texts]

    def close(self) -> None:
        """Deletes the agent: nothing is written from or into the ring any more. Its memory goes with the last view."""
        self._writes.clear()
        self._agent.deregister_memory(self._registration)
        del self._agent
        self._memory.release()

    def _begin(self, at: int, size: int) -> Any:
        ours = self._agent.get_xfer_descs([(self.address + at, size, 0)], MEMORY_KIND)
        theirs = self._agent.get_xfer_descs([(self._peer_address + at, size, 0)], MEMORY_KIND)
        handle = self._agent.initialize_xfer("WRITE", ours, theirs, self._peer)
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
