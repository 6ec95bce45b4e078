"""A way for payloads from one prefill to one decode worker, whatever it is made of."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import zmq

from core.config import Transport
from core.messages import Layer


class Sent(NamedTuple):
    """A payload that is on its way."""

    digest: int
    tracker: zmq.MessageTracker | None  # done when the payload's memory is not read any more; None: it is not


class Channel(Protocol):
    """The sender's end. Payloads leave in order, and arrive in order or not at all."""

    transport: Transport
    sealed: bool
    room: int  # bytes that may be under way
    frame: int  # bytes of a payload, about

    def send(self, header: Layer, views: Sequence[memoryview]) -> Sent | None:
        """Sends a payload, or one without bytes, a probe. None: nothing can be taken now."""
        ...

    def close(self) -> None:
        """What is still under way is lost, or arrives."""
        ...
