"""What happens to one handoff on the decode side: messages of the peer, and events of the engine and the channel."""

from msgspec import Struct

from contracts.messages.handoff import Abort, Aborted, Commit, Layer, Open, Remind
from kvtransfer.events import BlocksGranted, BlocksRefused, HandoffOver


class LayerArrived(Struct, frozen=True):
    """A Layer has arrived, with a payload of `size` bytes."""

    header: Layer
    size: int


class PayloadLanded(Struct, frozen=True):
    """A payload is in its blocks; `digest` is its digest on arrival."""

    header: Layer
    digest: int


class SenderDead(Struct, frozen=True):
    """The prefill worker was silent too long, and counts as dead."""

    reason: str


class WriterCame(Struct, frozen=True):
    """The sender has asked for the pool's memory, to write into granted blocks."""


class WriterGone(Struct, frozen=True):
    """The sender cannot write into the pool any more: its process has ended, or has let go of the memory."""


FromWorker = BlocksGranted | BlocksRefused | HandoffOver  # engine events that name their handoff

OfLink = SenderDead | WriterCame | WriterGone
DecodeHandoffEvent = Open | Remind | Commit | Abort | Aborted | FromWorker | LayerArrived | PayloadLanded | OfLink
