"""Lists what the two state machines ask their drivers to do, besides telling the engine its `kvtransfer.events`."""

from msgspec import Struct

from contracts.kv.spec import PayloadConversion
from contracts.messages.handoff import Layer, Offer
from contracts.messages.wire import Addressed
from kvtransfer.events import ToDecodeEngine, ToPrefillEngine
from kvtransfer.handoff import HandoffKey


class Send(Struct, frozen=True):
    """Asks to send `message`; on the decode side over the link that the handoff came over."""

    message: Addressed
    link: bytes = b""  # routing id at the decode side's socket; the prefill side has one socket per link


class Land(Struct, frozen=True):
    """Asks to write the payload of `header` into blocks of the pool, or convert it, and then to report its digest."""

    key: HandoffKey
    header: Layer
    blocks: list[int] | PayloadConversion  # numbers in the pool; a Piece if the payload is in another form


class Lost(Struct, frozen=True):
    """The peer of this link is dead: its socket is to be closed first, and then every handoff to be told."""

    reason: str


class Joined(Struct, frozen=True):
    """The peer has told which ways are open for this link's payloads."""

    offer: Offer


Instruction = Send | Land | Lost | Joined | ToPrefillEngine | ToDecodeEngine
