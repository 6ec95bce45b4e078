"""What the state machines ask their drivers to do, besides reporting `kvtransfer.events` to the engine."""

from msgspec import Struct

from contracts.kv.spec import PayloadConversion
from contracts.messages.handoff import Layer, Offer
from contracts.messages.wire import Addressed
from kvtransfer.events import ToDecodeEngine, ToPrefillEngine
from kvtransfer.handoff import HandoffKey


class Send(Struct, frozen=True):
    """Send `message`; on the decode side over the handoff's link."""

    message: Addressed
    link: bytes = b""  # routing id on the decode side's socket; the prefill side has one socket per link


class Land(Struct, frozen=True):
    """Write or convert the payload of `header` into blocks of the pool, then report its digest."""

    key: HandoffKey
    header: Layer
    blocks: list[int] | PayloadConversion  # numbers in the pool, or a conversion if the payload has another format


class Lost(Struct, frozen=True):
    """The link's peer is dead: close the socket first, then end every handoff."""

    reason: str


class Joined(Struct, frozen=True):
    """The peer has offered transports for this link's payloads."""

    offer: Offer


Instruction = Send | Land | Lost | Joined | ToPrefillEngine | ToDecodeEngine
