"""What a worker's engine and its side of the handoff tell each other. Data only: nothing refers to the other's objects.

On the prefill side the engine opens a handoff, says which layers are ready, and commits or aborts it; each ends in one
`Closed` and then one `Unpinned`. On the decode side every `RoomWanted` is answered with `RoomGranted` or `RoomRefused`,
and ends in one `Landed` or one `Dropped`, unless the engine has refused it; a `Landed` one may still be dropped
(`owned`) by a cancel or a higher attempt, until the engine says `HandoffOver`. Either side takes `CancelAttempt`.
"""

from typing import Literal

from msgspec import Struct

from core.ids import AttemptKey
from core.messages import Branch, Commit, Open, PrefillJob, Stages
from kvtransfer.digest import Place
from kvtransfer.handoff import HandoffKey

Tables = tuple[list[int], ...]
"""The blocks of one sequence, in order of position, for each KV group."""

Outcome = Literal["accepted", "failed", "done"]

# from the engine of a prefill worker ---------------------------------------------------------------------------------


class OpenHandoff(Struct, frozen=True):
    """The prompt's blocks are there: asks the decode worker for room, once for all `samples` that still live."""

    handoff: int
    job: PrefillJob
    samples: tuple[int, ...]
    deadline: float  # s, of the local clock
    blocks: Tables


class LayerReady(Struct, frozen=True):
    """One layer's KV of the sequence's blocks before `upto` is in the pool, and will not change."""

    handoff: int
    group: int
    layer: int
    upto: int


class CommitHandoff(Struct, frozen=True):
    """The prompt is computed, and these samples go on from their first tokens."""

    handoff: int
    branches: list[Branch]
    stages: Stages
    computed_at: float  # s, of the local clock


class AbortHandoff(Struct, frozen=True):
    """The handoff is not wanted any more: `done` if the first token has ended all samples, else why it failed."""

    handoff: int
    reason: str


# to the engine of a prefill worker -----------------------------------------------------------------------------------


class HandoffTimes(Struct, frozen=True):
    """What the stages of a handoff took, as its prefill side measures them, ms; 0 for what it did not come to."""

    grant_ms: float = 0.0  # from Open to Grant
    send_ms: float = 0.0  # in which payloads were ready to leave, or had left and were not seen by the peer yet
    exposed_ms: float = 0.0  # from the end of the prompt's computation


class Closed(Struct, frozen=True, kw_only=True):
    """The handoff is over: drop the sequence's references, and report a failure if it is one."""

    handoff: int
    outcome: Outcome
    reason: str
    retryable: bool
    bytes: int = 0
    digest: int = 0
    ms: float = 0.0
    digests: dict[Place, int] | None = None  # of each payload, where the side traces them
    times: HandoffTimes = HandoffTimes()


class Unpinned(Struct, frozen=True):
    """No frame of this handoff can still be read from the pool: drop its I/O references."""

    handoff: int


# to the engine of a decode worker ------------------------------------------------------------------------------------


class RoomWanted(Struct, frozen=True):
    """A handoff asks for room for its prompt's KV."""

    key: HandoffKey
    open: Open
    samples: tuple[int, ...]  # those of the Open's that are not dead already


class Landed(Struct, frozen=True, kw_only=True):
    """All KV is in its blocks and its digest is right: the Commit's branches are this worker's now, and may run.

    Some of them may have been cancelled meanwhile; the handoff itself ends only when all its samples were.
    """

    key: HandoffKey
    open: Open
    commit: Commit
    bytes: int
    digest: int
    digests: dict[Place, int] | None = None
    land_ms: float = 0.0  # since Commit arrived


class Dropped(Struct, frozen=True):
    """The handoff is over: release its sequences and blocks."""

    key: HandoffKey
    reason: str
    owned: bool = False  # it had landed


# from the engine of a decode worker ----------------------------------------------------------------------------------


class RoomGranted(Struct, frozen=True):
    """All blocks of the prompt are reserved; the first `held` of each group have their KV already."""

    key: HandoffKey
    blocks: Tables
    held: int


class RoomRefused(Struct, frozen=True):
    """The handoff cannot have room here. No further event comes for it."""

    key: HandoffKey
    reason: str
    message: str
    retryable: bool


class HandoffOver(Struct, frozen=True):
    """Every sequence that landed with this handoff has ended; or why the handoff itself is not wanted any more."""

    key: HandoffKey
    reason: str = "finished"


# from either ---------------------------------------------------------------------------------------------------------


class CancelAttempt(Struct, frozen=True):
    """Attempts at this sample up to the one named are dead, those too whose handoff has still to arrive."""

    key: AttemptKey


FromPrefill = OpenHandoff | LayerReady | CommitHandoff | AbortHandoff | CancelAttempt
ToPrefillEngine = Closed | Unpinned
FromDecode = RoomGranted | RoomRefused | HandoffOver | CancelAttempt
ToDecodeEngine = RoomWanted | Landed | Dropped
