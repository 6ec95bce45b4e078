"""Events between a worker's engine and its side of the handoff, as plain data.

Prefill side: the engine opens a handoff, reports ready layers, and commits or aborts; each handoff ends with one
`Closed` and then one `Unpinned`. Decode side: the engine answers every `BlocksWanted` with `BlocksGranted` or
`BlocksRefused`. A granted handoff ends with one `Landed` or one `Dropped`; after `Landed`, a cancel or a higher attempt
may still drop it (`owned`) until the engine reports `HandoffOver`. Both sides take `CancelAttempt`.
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
"""Block tables: for each KV group, a sequence's blocks in order of position; block 0 where a window needs none."""

Outcome = Literal["accepted", "failed", "done"]

# from the engine of a prefill worker ---------------------------------------------------------------------------------


class OpenHandoff(Struct, frozen=True):
    """Asks the decode worker for blocks for a prompt whose blocks are allocated here, once for all living `samples`."""

    handoff: int  # unique in this life of the worker
    job: PrefillJob
    ids: bytes  # ids of the prompt, packed
    samples: tuple[int, ...]  # the job's samples that still live
    deadline: float  # s, of the local clock
    due: float  # s, of the local clock: due time of its first token
    blocks: Tables  # of the prompt; a window's blocks may follow later as `BlocksTaken`


class BlocksTaken(Struct, frozen=True):
    """All blocks of the prompt that will move are allocated in this KV group, which has a window.

    It precedes the first `LayerReady` of the group, unless the blocks were known when the handoff was opened.
    """

    handoff: int
    group: int  # index of the KV group in the spec
    blocks: list[int]  # in order of position; block 0 where none is needed


class LayerReady(Struct, frozen=True):
    """One layer's KV in the sequence's blocks before `upto` is in the pool, and final."""

    handoff: int
    group: int  # index of the KV group in the spec
    layer: int
    upto: int  # number of blocks, from the start of the sequence


class CommitHandoff(Struct, frozen=True):
    """The prompt is computed, and these samples go on from their first tokens."""

    handoff: int
    branches: list[Branch]
    stages: Stages  # times of the request so far
    computed_at: float  # s, of the local clock
    prompt_scores: Scores | None = None  # if the first branch carries the prompt's scores
    state: bytes = b""  # see `Commit`


class AbortHandoff(Struct, frozen=True):
    """The engine gives the handoff up: `done` if all samples ended with their first token, else a reason."""

    handoff: int
    reason: str


# to the engine of a prefill worker -----------------------------------------------------------------------------------


class HandoffTimes(Struct, frozen=True):
    """Durations of a handoff's stages by the prefill side's clock; 0 for stages that it did not reach."""

    grant_ms: float = 0.0  # from Open to Grant
    send_ms: float = 0.0  # while payloads were ready, or sent and not yet seen by the peer
    exposed_ms: float = 0.0  # from the end of the prompt's computation to the end of the handoff


class Closed(Struct, frozen=True, kw_only=True):
    """The handoff is over: the engine releases the sequences, and reports a failure if it is one."""

    handoff: int
    outcome: Outcome
    reason: str  # empty if accepted
    retryable: bool  # another attempt may succeed
    bytes: int = 0  # of the payloads sent
    digest: int = 0  # sum of their digests
    ms: float = 0.0  # since the handoff was opened
    digests: dict[PayloadPlace, int] | None = None  # each payload's digest, if traced
    times: HandoffTimes = HandoffTimes()


class Unpinned(Struct, frozen=True):
    """No frame of this handoff can be read from the pool any more: the engine drops its I/O references."""

    handoff: int


# to the engine of a decode worker ------------------------------------------------------------------------------------


class BlocksWanted(Struct, frozen=True):
    """A handoff asks for blocks for its prompt."""

    key: HandoffKey
    open: Open
    samples: tuple[int, ...]  # the Open's samples that are not dead yet


class Landed(Struct, frozen=True, kw_only=True):
    """All KV is in its blocks with the right digest: the Commit's branches belong to this worker, and may run.

    Some of them may have been cancelled meanwhile; the handoff ends only when all its samples are cancelled.
    """

    key: HandoffKey
    open: Open
    commit: Commit
    bytes: int  # of all payloads
    digest: int  # sum of their digests
    digests: dict[PayloadPlace, int] | None = None  # each payload's digest, if traced
    land_ms: float = 0.0  # since Commit arrived


class Dropped(Struct, frozen=True):
    """The handoff is over: the engine releases its sequences and blocks."""

    key: HandoffKey
    reason: str
    owned: bool = False  # it had landed before


# from the engine of a decode worker ----------------------------------------------------------------------------------


class BlocksGranted(Struct, frozen=True):
    """All blocks that the first query behind the prompt sees are reserved."""

    key: HandoffKey
    blocks: Tables
    held: tuple[int, ...]  # leading blocks of each group, of this side's size, that are cached here or not needed


class BlocksRefused(Struct, frozen=True):
    """The handoff cannot get blocks here. No further event of it follows."""

    key: HandoffKey
    reason: str  # stable, for counters
    message: str  # for people
    retryable: bool  # another attempt may succeed


class HandoffOver(Struct, frozen=True):
    """All sequences of a landed handoff have ended; or the engine gives the handoff up, for another `reason`."""

    key: HandoffKey
    reason: str = "finished"


# from either ---------------------------------------------------------------------------------------------------------


class CancelAttempt(Struct, frozen=True):
    """This attempt at a sample and lower ones are dead, even if their handoff has not arrived yet."""

    key: AttemptKey


FromPrefill = OpenHandoff | BlocksTaken | LayerReady | CommitHandoff | AbortHandoff | CancelAttempt
ToPrefillEngine = Closed | Unpinned
FromDecode = BlocksGranted | BlocksRefused | HandoffOver | CancelAttempt
ToDecodeEngine = BlocksWanted | Landed | Dropped
