"""Lists what a worker's engine and its side of the handoff tell each other, as data that refers to no object.

On the prefill side the engine opens a handoff, says which layers are ready, and commits or aborts it; each ends in one
`Closed` and then one `Unpinned`. On the decode side every `RoomWanted` is answered with `RoomGranted` or `RoomRefused`,
and ends in one `Landed` or one `Dropped`, unless the engine has refused it; a `Landed` one may still be dropped
(`owned`) by a cancel or a higher attempt, until the engine says `HandoffOver`. Either side takes `CancelAttempt`.
"""

from typing import Literal

from msgspec import Struct

from contracts.ids import AttemptKey
from contracts.messages.gateway import Stages
from contracts.messages.handoff import Branch, Commit, Open
from contracts.messages.job import PrefillJob
from contracts.scores import Scores
from kvtransfer.digest import PayloadPlace
from kvtransfer.handoff import HandoffKey

Tables = tuple[list[int], ...]
"""For each KV group, the pool's blocks of one sequence, in order of position; block 0 where a window needs none."""

Outcome = Literal["accepted", "failed", "done"]

# from the engine of a prefill worker ---------------------------------------------------------------------------------


class OpenHandoff(Struct, frozen=True):
    """Asks for room on the decode worker for a prompt whose blocks are reserved here, once for all living `samples`."""

    handoff: int  # a number that is unique in this life of the worker
    job: PrefillJob
    ids: bytes  # of its prompt, packed
    samples: tuple[int, ...]  # of the job's samples those that still live
    deadline: float  # s, of the local clock
    due: float  # s, of the local clock: when its first token is wanted
    blocks: Tables  # of the prompt; those of a window follow, if they are not all taken yet


class BlocksTaken(Struct, frozen=True):
    """All blocks of the prompt that will move are taken in this KV group, which has a window.

    It comes before the first `LayerReady` of the group, unless the blocks were known when the handoff was opened.
    """

    handoff: int
    group: int  # index of the KV group in the spec
    blocks: list[int]  # in order of position; block 0 where none is needed


class LayerReady(Struct, frozen=True):
    """One layer's KV of the sequence's blocks before `upto` is in the pool, and will not change."""

    handoff: int
    group: int  # index of the KV group in the spec
    layer: int
    upto: int  # number of blocks, from the sequence's first


class CommitHandoff(Struct, frozen=True):
    """The prompt is computed, and these samples go on from their first tokens."""

    handoff: int
    branches: list[Branch]
    stages: Stages  # times that the request took so far
    computed_at: float  # s, of the local clock
    prompt_scores: Scores | None = None  # if the first of `branches` has the prompt's
    state: bytes = b""  # see `Commit`


class AbortHandoff(Struct, frozen=True):
    """The engine gives the handoff up: `done` if the first token has ended all samples, else why it failed."""

    handoff: int
    reason: str


# to the engine of a prefill worker -----------------------------------------------------------------------------------


class HandoffTimes(Struct, frozen=True):
    """Says how long the stages of a handoff took, by the prefill side's clock; 0 for those that it did not reach."""

    grant_ms: float = 0.0  # from Open to Grant
    send_ms: float = 0.0  # while any payload was ready to leave, or had left and the peer had not seen it
    exposed_ms: float = 0.0  # from the end of the prompt's computation to the end of the handoff


class Closed(Struct, frozen=True, kw_only=True):
    """The handoff is over: the engine drops the sequence's references, and reports a failure if it is one."""

    handoff: int
    outcome: Outcome
    reason: str  # empty if it was accepted
    retryable: bool  # another attempt may succeed
    bytes: int = 0  # of the payloads that have left
    digest: int = 0  # sum of their digests
    ms: float = 0.0  # since the handoff was opened
    digests: dict[PayloadPlace, int] | None = None  # the digest of each payload, if the side traces them
    times: HandoffTimes = HandoffTimes()


class Unpinned(Struct, frozen=True):
    """No frame of this handoff can still be read from the pool: the engine drops its I/O references."""

    handoff: int


# to the engine of a decode worker ------------------------------------------------------------------------------------


class RoomWanted(Struct, frozen=True):
    """A handoff asks for room for its prompt's KV."""

    key: HandoffKey
    open: Open
    samples: tuple[int, ...]  # of the Open's samples those that are not dead already


class Landed(Struct, frozen=True, kw_only=True):
    """All KV is in its blocks and its digest is right: the Commit's branches are this worker's now, and may run.

    Some of them may have been cancelled meanwhile; the handoff itself ends only when all its samples were.
    """

    key: HandoffKey
    open: Open
    commit: Commit
    bytes: int  # of all its payloads
    digest: int  # sum of their digests
    digests: dict[PayloadPlace, int] | None = None  # the digest of each payload, if the side traces them
    land_ms: float = 0.0  # since Commit arrived


class Dropped(Struct, frozen=True):
    """The handoff is over: the engine releases its sequences and blocks."""

    key: HandoffKey
    reason: str
    owned: bool = False  # the handoff had landed before


# from the engine of a decode worker ----------------------------------------------------------------------------------


class RoomGranted(Struct, frozen=True):
    """All blocks that the first query behind the prompt sees are reserved."""

    key: HandoffKey
    blocks: Tables
    held: tuple[int, ...]  # leading blocks of each group, of this side's size, that have their KV already, or need none


class RoomRefused(Struct, frozen=True):
    """The handoff cannot have room here. No further event comes for it."""

    key: HandoffKey
    reason: str  # a stable word, for counters
    message: str  # a sentence, for people
    retryable: bool  # another attempt may find room


class HandoffOver(Struct, frozen=True):
    """Every sequence that landed with this handoff has ended; or the engine gives it up, for another `reason`."""

    key: HandoffKey
    reason: str = "finished"


# from either ---------------------------------------------------------------------------------------------------------


class CancelAttempt(Struct, frozen=True):
    """Attempts at this sample are dead up to the one named, also those whose handoff has still to arrive."""

    key: AttemptKey


FromPrefill = OpenHandoff | BlocksTaken | LayerReady | CommitHandoff | AbortHandoff | CancelAttempt
ToPrefillEngine = Closed | Unpinned
FromDecode = RoomGranted | RoomRefused | HandoffOver | CancelAttempt
ToDecodeEngine = RoomWanted | Landed | Dropped
