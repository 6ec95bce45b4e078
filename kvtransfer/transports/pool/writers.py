"""The decode worker's end of channels into its pool: shares the pool's memory, and waits for the end of each writer.

A process that is killed closes its socket after its mappings are gone, so the end of file proves that it cannot write
any more. (A process id would not do, since containers number processes by themselves.) A pool in GPUs is opened by the
handles in the Offer; if such a writer ends without a farewell, the end of its process is awaited, too
(`writer_process.py`).
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from contracts.errors import DeviceError, MessageError
from contracts.kv.spec import KVSpec
from kvtransfer.memory import KVMemory
from kvtransfer.transports.pool.writer_process import process_of

DESCRIPTOR_TEXT = b"\0"  # a message with descriptors has at least one byte

log = logging.getLogger("baton.handoff")


class PoolWriters:
    """The prefill workers of this host that may write into the pool, one for each link."""

    def __init__(
        self, spec: KVSpec, memory: KVMemory, gone: Callable[[bytes], None], *, is_offered: bool = True
    ) -> None:
        """`gone` is called with the link of a writer that cannot write any more; `is_offered`: writers may come."""
        self.devices = b""
        if is_offered and memory.devices is not None:
            try:
                self.devices = memory.devices.offered()
            except DeviceError as error:
                log.warning("KV from GPUs of this host passes through the host's memory: %s", error)
        is_shared = is_offered and bool(memory.descriptors or self.devices)
        self.fingerprint = spec.fingerprint() if is_shared else ""  # of the pool; empty if it is not shared
        self.counts = memory.counts
        self._descriptors = memory.descriptors
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._sockets: dict[bytes, socket.socket] = {}
        self._processes: dict[bytes, int] = {}  # pidfds of writers on GPUs that have not said farewell

    def __contains__(self, link: bytes) -> bool:
        return link in self._sockets

    def take(self, link: bytes, descriptor: int) -> None:
        """Gives a writer the memory by its socket; the descriptor stays the caller's. Raises `MessageError`."""
        if link in self._sockets:
            raise MessageError("a second writer of a link")
        writer = socket.socket(fileno=os.dup(descriptor))
        try:
            writer.setblocking(False)
            if writer.family != socket.AF_UNIX:
                raise MessageError("a writer's socket of another family")
            if self.devices:
                self._processes[link] = process_of(writer)
            socket.send_fds(writer, [DESCRIPTOR_TEXT], self._descriptors)
        except (OSError, MessageError) as error:
            writer.close()
            self._forget_process(link)
            raise MessageError(f"a writer that cannot be served: {error}") from None
        self._sockets[link] = writer
        self._loop.add_reader(writer, self._receive, link)

    def _receive(self, link: bytes) -> None:
        try:
            if self._sockets[link].recv(1):
                self._forget_process(link)  # a farewell: from now on the end of file suffices
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # reset: the other end is closed
        if link in self._processes:
            self._loop.remove_reader(self._sockets[link])
            self._loop.add_reader(self._processes[link], self._end, link)
        else:
            self._end(link)

    def _end(self, link: bytes) -> None:
        self._close(link)
        self._gone(link)

    def dismiss(self, link: bytes) -> None:
        """Asks a link's writer, if any, to let go of the memory."""
        if link in self._sockets:
            with suppress(OSError):  # its end may be closed
                self._sockets[link].shutdown(socket.SHUT_WR)

    def _close(self, link: bytes) -> None:
        writer = self._sockets.pop(link)
        self._loop.remove_reader(writer)
        writer.close()
        self._forget_process(link)

    def _forget_process(self, link: bytes) -> None:
        if (process := self._processes.pop(link, None)) is not None:
            self._loop.remove_reader(process)
            os.close(process)

    def close(self) -> None:
        for link in list(self._sockets):
            self._close(link)
