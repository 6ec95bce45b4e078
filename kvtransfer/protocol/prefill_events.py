"""What happens to one handoff on the prefill side: messages of the peer, and events of the engine and the channel."""

from msgspec import Struct

from contracts.messages.gateway import Way
from contracts.messages.handoff import Abort, Aborted, Accepted, Grant, Refused, Waiting
from kvtransfer.events import AbortHandoff, CommitHandoff, LayerReady
from kvtransfer.protocol.payloads import Payload


class PayloadTaken(Struct, frozen=True):
    """The channel took a payload, which ends at byte offset `end` of the link."""

    payload: Payload
    end: int
    digest: int | None  # None: `FrameDone` will have it
    way: Way | None = None  # how it was sent


class FrameDone(Struct, frozen=True):
    """The channel no longer reads the payload with this number."""

    handoff: int
    number: int
    digest: int | None = None  # if it was not known when the channel took the payload


class LinkSeen(Struct, frozen=True):
    """The peer has seen the link up to byte offset `seen`."""

    seen: int


class PeerDead(Struct, frozen=True):
    """The peer's life is over, and its socket is closed."""

    reason: str


OfHandoff = (
    Waiting | Grant | Refused | Accepted | Abort | Aborted | LayerReady | CommitHandoff | AbortHandoff | FrameDone
)
"""Events that name their handoff: messages of the peer, engine events, channel events."""

PrefillHandoffEvent = OfHandoff | PayloadTaken | LinkSeen | PeerDead
