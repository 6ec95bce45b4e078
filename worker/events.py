"""What the two threads of a worker tell each other: data, no references to anything that the other thread owns.

The handoff's own events (`kvtransfer.events`) pass between them as they are.
"""

from msgspec import Struct

from core.ids import AttemptKey
from core.messages import AnyJob, Emitted

# to the engine thread -----------------------------------------------------------------------------------------------


class Submit(Struct, frozen=True):
    """A job was taken from the stream, and is new."""

    job: AnyJob


class Kill(Struct, frozen=True):
    """This attempt is dead: cancelled, superseded, or its gateway is gone. Nobody wants to hear of it again."""

    key: AttemptKey
    reason: str


class Stop(Struct, frozen=True):
    """Take nothing new, finish what runs, then end. With an error, end at once."""

    error: str = ""


# to the I/O thread --------------------------------------------------------------------------------------------------


class Begin(Struct, frozen=True):
    """A landed sequence is this worker's now: its tokens so far are for the gateway, and more will follow."""

    gateway: str
    deadline: float
    emitted: Emitted


class Emit(Struct, frozen=True):
    """A step has given these tokens."""

    emitted: list[Emitted]


class Failure(Struct, frozen=True):
    """How an attempt ends without an answer: a stable word, a sentence, and whether another attempt may do better."""

    reason: str
    message: str = ""
    retryable: bool = False


class Fail(Struct, frozen=True):
    """This attempt ends without an answer."""

    key: AttemptKey
    failure: Failure


class Phase(Struct, frozen=True):
    """A sequence is in another phase of its way; for whoever asks."""

    key: AttemptKey
    state: str


ToGateway = Begin | Emit | Fail | Phase
"""What the gateways are to hear of."""
