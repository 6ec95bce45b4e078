"""What the two threads of a worker tell each other: data, no references to anything that the other thread owns.

The transfer's own events (`kvtransfer`) pass through to the engine thread as they are.
"""

from msgspec import Struct

from core.ids import SequenceKey
from core.messages import AnyJob, Emitted, PrefillJob
from engine.blocks.manager import Tables
from kvtransfer.moves import FirstTokens, HandoffKey

# to the engine thread -----------------------------------------------------------------------------------------------


class Submit(Struct, frozen=True):
    """A job was taken from the stream, and is new."""

    job: AnyJob


class Kill(Struct, frozen=True):
    """This attempt is dead: cancelled, superseded, or its gateway is gone. Nobody wants to hear of it again."""

    key: SequenceKey
    attempt: int
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
    """The tokens of one step."""

    emitted: list[Emitted]


class Fail(Struct, frozen=True):
    """This attempt ends without an answer."""

    key: SequenceKey
    attempt: int
    reason: str
    message: str
    retryable: bool


class Phase(Struct, frozen=True):
    """A sequence is in another phase of its way; for whoever asks."""

    key: SequenceKey
    attempt: int
    state: str


class OpenHandoff(Struct, frozen=True):
    """The prompt's blocks are there: ask the decode worker for room, once for all samples that still live."""

    handoff: int
    job: PrefillJob
    samples: tuple[int, ...]
    blocks: Tables


class LayerWritten(Struct, frozen=True):
    """One layer of one step is in the pool: for each handoff, the blocks before the number are final."""

    group: int
    layer: int
    handoffs: list[tuple[int, int]]


class CommitHandoff(Struct, frozen=True):
    """The prompt is computed, and the first token of every sample drawn; some samples go on."""

    handoff: int
    first: FirstTokens
    computed_at: float  # Redis server time, s


class AbortHandoff(Struct, frozen=True):
    """The handoff is not needed any more."""

    handoff: int
    reason: str


class RoomGranted(Struct, frozen=True):
    """A handoff that asked for room has it; its first `held` blocks need not be sent."""

    key: HandoffKey
    blocks: Tables
    held: int


class RoomRefused(Struct, frozen=True):
    """A handoff that asked for room cannot have it."""

    key: HandoffKey
    reason: str
    message: str
    retryable: bool


class HandoffOver(Struct, frozen=True):
    """Every sequence that landed with this handoff has ended."""

    key: HandoffKey
