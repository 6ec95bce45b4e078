"""The interface of channels, which carry payloads from one prefill to one decode worker."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import zmq

from contracts.kinds import Transport
from contracts.messages.handoff import Layer
from kvtransfer.memory import DigestedCopy


class SentPayload(NamedTuple):
    """A sent payload."""

    digest: int | None  # None: a device still computes it, and its `tracker` will tell it
    tracker: zmq.MessageTracker | DigestedCopy | None
    """Done when the payload's memory is not read any more; None: done already."""


class Channel(Protocol):
    """Sends payloads, which arrive in order or not at all."""

    transport: Transport
    sealed: bool  # payloads are encrypted
    capacity: int  # bytes that may be in flight
    frame: int  # approximate bytes of a payload

    def send(self, header: Layer, views: Sequence[memoryview], blocks: Sequence[int] = ()) -> SentPayload | None:
        """Sends a payload, or a probe if there are no views. Returns None if nothing can be taken now.

        `blocks` of the peer's pool are to hold the payload, if the peer has told them. Raises `MessageError` for blocks
        that the pool does not have.
        """
        ...

    def close(self) -> None: ...
