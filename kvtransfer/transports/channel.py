"""Says what any way for payloads from one prefill to one decode worker has to offer, whatever it is made of."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import zmq

from contracts.kinds import Transport
from contracts.messages.handoff import Layer


class SentPayload(NamedTuple):
    """Tells that a payload is on its way."""

    digest: int
    tracker: zmq.MessageTracker | None  # done when nobody reads the payload's memory any more; None: already so


class Channel(Protocol):
    """Sends payloads, which leave in order, and arrive in order or not at all."""

    transport: Transport
    sealed: bool  # payloads are encrypted
    room: int  # bytes that may be under way
    frame: int  # bytes of a payload, about

    def send(self, header: Layer, views: Sequence[memoryview]) -> SentPayload | None:
        """Sends a payload, or a probe if there are no views. Returns None if nothing can be taken now."""
        ...

    def close(self) -> None:
        """Closes this end: what is still under way is lost, or arrives."""
        ...
