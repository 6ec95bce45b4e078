"""What the two state machines ask their drivers to do, beside what the engine is told (`kvtransfer.events`)."""

from msgspec import Struct

from core.kvspec import Piece
from core.messages import Addressed, Layer, Offer
from kvtransfer.events import ToDecodeEngine, ToPrefillEngine
from kvtransfer.handoff import HandoffKey


class Send(Struct, frozen=True):
    """Send `message`; on the decode side over the link (by its routing id) that the handoff came over."""

    message: Addressed
    link: bytes = b""


class Land(Struct, frozen=True):
    """Write the payload of `header` into these blocks of the pool, or convert it, then report its digest."""

    key: HandoffKey
    header: Layer
    blocks: list[int] | Piece


class Lost(Struct, frozen=True):
    """The peer of this link is dead: close its socket, then tell every handoff."""

    reason: str


class Joined(Struct, frozen=True):
    """The peer tells which ways are open for this link's payloads."""

    offer: Offer


Instruction = Send | Land | Lost | Joined | ToPrefillEngine | ToDecodeEngine
