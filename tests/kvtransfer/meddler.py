"""Meddles between a sender and its socket: drops, repeats, holds back, alters and cuts the payloads that pass."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from contracts.errors import MessageError
from contracts.messages.handoff import Layer, decode_layer
from kvtransfer.prefill_link_driver import PrefillLinkDriver
from kvtransfer.transports.shm.ring import Ring

Frames = list[bytes]
Fate = Callable[[Frames], list[Frames]]
"""Decides what leaves instead of a payload's frames."""


class Meddler:
    """Stands in for the socket that a link's headers leave by. Payload messages count from 0, probes do not."""

    def __init__(self, link: PrefillLinkDriver, fates: dict[int, Fate], probes: bool = False, at: int = 0) -> None:
        """Takes the socket's place, of connection `at`. `fates` are by number of the payload.

        With `probes`, those are lost as well.
        """
        self._probes = probes
        channel: Any = link.channel
        self.ring: Ring | None = getattr(channel, "_ring", None)
        self.passed: list[Frames] = []
        self._fates = fates
        of_sockets = hasattr(channel, "connections")
        holder, where = (channel.connections[at], "socket") if of_sockets else (channel, "_control")
        self._socket: Any = getattr(holder, where)
        setattr(holder, where, self)

    def send_multipart(self, frames: Sequence[Any], **options: Any) -> Any:
        """Sends what becomes of these frames."""
        plain = [bytes(frame.buffer) if isinstance(frame, zmq.Frame) else bytes(frame) for frame in frames]
        header = header_of(plain)
        if header is not None and header.count == 0 and self._probes:
            return _done()
        if header is None or header.count == 0:
            return self._socket.send_multipart(frames, **options)
        fate = self._fates.get(len(self.passed), keep)
        self.passed.append(plain)
        for each in fate(plain):
            self._socket.send_multipart(each, flags=zmq.NOBLOCK)
        return _done()

    def close(self, linger: int | None = None) -> None:
        """Closes the socket."""
        self._socket.close(linger)


def _done() -> Any:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


def header_of(frames: Frames) -> Layer | None:
    """Finds the Layer among the first three frames: a count and a nonce may be in front of it."""
    for frame in frames[:3]:
        try:
            return decode_layer(frame)
        except MessageError:
            continue
    return None


def keep(frames: Frames) -> list[Frames]:
    """Lets a payload pass as it is."""
    return [frames]


def drop(frames: Frames) -> list[Frames]:
    """Loses a payload."""
    return []
