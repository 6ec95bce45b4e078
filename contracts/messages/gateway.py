"""Defines the messages between gateways and workers, one union for each way."""

from typing import Annotated

from msgspec import Meta, Struct

from contracts.ids import NO_TICKET, AttemptKey, Count, Name, Ticket
from contracts.kinds import Codec, Transport
from contracts.kv.block_hash import SHORT_KEY_BYTES
from contracts.messages.packed_ids import ID_BYTES, IDS_PER_PIECE
from contracts.messages.sampling import Finish, Samples
from contracts.messages.wire import VERSION, Addressed, MessageDecoder
from contracts.scores import Scores
from pricing.backlog import Backlog

NOT_HEARD = -1
"""A gateway has heard nothing of a worker's keys, or not all of it."""
KEYS_IN_MESSAGE = 4096
JoinedKeys = Annotated[bytes, Meta(max_length=KEYS_IN_MESSAGE * SHORT_KEY_BYTES)]

# gateway -> worker ------------------------------------------------------------------------------------------------


class Hello(Addressed, frozen=True, kw_only=True, tag="hello"):
    """Begins a connection; nothing else is listened to before the Welcome."""

    version: int = VERSION


class Ping(Addressed, frozen=True, kw_only=True, tag="ping"):
    """Asks whether the worker lives; the I/O thread answers, even while a step runs."""

    number: int  # repeated in the Pong
    keys: int = NOT_HEARD  # number of the change of the worker's keys up to which all was heard


MAX_QUESTIONS = 256
"""Attempts that one `Ask` names, at most."""


class Question(Struct, frozen=True, array_like=True):
    """Names an attempt, and the output index from which its tokens are wanted."""

    key: AttemptKey
    next_index: int


class Ask(Addressed, frozen=True, kw_only=True, tag="ask"):
    """Asks, after gaps or a silence, for these attempts' tokens, or how they stand. Each of them is answered."""

    asked: Annotated[tuple[Question, ...], Meta(max_length=MAX_QUESTIONS)]


class Cancel(Addressed, frozen=True, kw_only=True, tag="cancel"):
    """Kills the attempts up to and including the one named. Repeated until answered with Failed."""

    key: AttemptKey


class Ended(Addressed, frozen=True, kw_only=True, tag="ended"):
    """The gateway has seen this sequence's end; the worker may forget its tokens."""

    key: AttemptKey


class Drain(Addressed, frozen=True, kw_only=True, tag="drain"):
    """Asks the worker to take no new work, finish what runs, and leave."""


class Piece(Addressed, frozen=True, kw_only=True, tag="piece"):
    """Brings ids of a job's prompt, those from `first` on: the answer to Wanted."""

    request: Name
    attempt: Count
    first: Count
    ids: Annotated[bytes, Meta(max_length=IDS_PER_PIECE * ID_BYTES)]  # packed

    def __post_init__(self) -> None:
        """Raises `ValueError` for bytes that are no whole ids."""
        if len(self.ids) % ID_BYTES:
            raise ValueError(f"{len(self.ids)} bytes are no whole token ids")


ToWorker = Hello | Ping | Ask | Cancel | Ended | Drain | Piece

# worker -> gateway ------------------------------------------------------------------------------------------------


class Welcome(Addressed, frozen=True, kw_only=True, tag="welcome"):
    """Answers a Hello; work may begin if the versions agree."""

    version: int = VERSION


class Pong(Addressed, frozen=True, kw_only=True, tag="pong"):
    """Answers a Ping: how many steps were done, when the engine's round is overdue, what it has taken, and room.

    What is on the stream with a higher ticket than `taken` waits its turn. Everything else was answered by `Started`
    before this left, or is lost.
    """

    number: int
    steps: int  # since the worker's start
    step_due_ms: float  # remaining ms, negative once it is overdue; 0: the engine has nothing to do
    taken: Ticket = NO_TICKET
    backlog: Backlog | None = None  # jobs up to `taken` are in it; None: it tells nothing


class KeyNews(Struct, frozen=True, array_like=True):
    """Tells which full blocks' KV a worker has: what has changed between two numbered changes, or a piece of all keys.

    Keys are short ones, joined (`contracts/kv/block_hash.py`).
    """

    first: int  # the changes behind this one, …
    upto: int  # … up to this one; of a piece: all keys as of this change
    kept: JoinedKeys
    lost: JoinedKeys
    piece: Annotated[int, Meta(ge=0)] = 0
    pieces: Annotated[int, Meta(ge=0, le=64)] = 0  # 0: these are changes

    def __post_init__(self) -> None:
        """Raises `ValueError` for bytes that are no whole keys, or a piece beyond the last."""
        if (
            len(self.kept) % SHORT_KEY_BYTES
            or len(self.lost) % SHORT_KEY_BYTES
            or (self.pieces and self.piece >= self.pieces)
        ):
            raise ValueError("joined keys of another length, or a piece that there is not")


class Kept(Addressed, frozen=True, kw_only=True, tag="kept"):
    """Tells which KV a worker has come to keep and has lost, so that prompts go where theirs lies."""

    news: KeyNews


class Started(Addressed, frozen=True, kw_only=True, tag="started"):
    """A worker has taken the job for these samples from its stream."""

    request: Name
    attempt: int
    samples: tuple[int, ...]


class Wanted(Addressed, frozen=True, kw_only=True, tag="wanted"):
    """Asks for the ids of a job's prompt from `first` on. Repeated until answered: by a Piece, or by Cancel."""

    request: Name
    attempt: Count
    samples: Samples
    first: Count


class Way(Struct, frozen=True, array_like=True):
    """Says how KV passes from one worker to another."""

    transport: Transport
    sealed: bool = False
    codec: Codec = "none"


class Stages(Struct, frozen=True, array_like=True):
    """Says what a sequence's way has taken so far, for people, in ms, bytes and tokens; 0 for what it did not come to.

    `exposed_ms` is what the handoff adds: from the end of the prompt's computation until all KV had landed. Each side
    measures its part, up to Commit's leaving and from its arrival on, so one crossing of the network is not in it.
    """

    queue_ms: float = 0.0  # from the gateway's adding the job until the prompt had its blocks
    prefill_ms: float = 0.0  # from then to the first token
    handoff_ms: float = 0.0  # from the Open's arrival until all KV had landed
    handoff_bytes: int = 0  # that landed
    cached_tokens: int = 0  # of the prompt, whose KV was found
    grant_ms: float = 0.0  # from Open to Grant
    send_ms: float = 0.0  # time with payloads ready to leave, or under way, before Commit left
    land_ms: float = 0.0  # from Commit's arrival until all KV had landed
    exposed_ms: float = 0.0
    way: Way | None = None  # None while nothing was moved


class Emitted(Struct, frozen=True, array_like=True):
    """Carries new tokens of one sequence: output indices `index`, `index` + 1, … The end rides with the last."""

    key: AttemptKey
    index: int
    token_ids: list[int]
    finish: Finish | None = None  # how the last token ended the sequence, if it did
    stages: Stages | None = None
    scores: Scores | None = None  # of these tokens, if the request wants them
    prompt_scores: Scores | None = None  # of the prompt's tokens but the first: with output index 0 of a request

    def __post_init__(self) -> None:
        """Raises `ValueError` for scores that are not of these tokens."""
        if self.scores is not None and len(self.scores) != len(self.token_ids):
            raise ValueError(f"{len(self.scores)} scores of {len(self.token_ids)} tokens")


class Tokens(Addressed, frozen=True, kw_only=True, tag="tokens"):
    """Carries all tokens of one step for one gateway."""

    emitted: list[Emitted]


STATE_HANDING_OFF = "handing off"
"""A prefill worker answers this state when its work is done, and the decode worker has not accepted the sequence yet.

Until then the decode worker may not even know of it.
"""

STATE_HANDED_OFF = "handed off"
"""A prefill worker answers this state when the sequence is the decode worker's now."""

STATE_LANDING = "landing"
"""A decode worker answers this state while the sequence's KV is on its way."""

REASON_GRAMMAR_FAILED = "grammar_failed"
"""Why an attempt failed: its grammar could not be followed any further."""
REASON_NOTHING_ALLOWED = "nothing_allowed"
"""An attempt fails for this reason when the client's own parameters together forbid every token."""

REASON_NO_ROOM = "grant_deadline"
"""An attempt fails for this reason when a decode worker has long not answered the question for room: nobody failed."""

REASON_NO_ADAPTER = "no_adapter"
"""An attempt fails for this reason when a worker lacks the adapter of its prompt; another may have it."""

REASON_DRAINING = "draining"
"""An attempt fails for this reason when a worker was told to stop: somebody has planned it, and nobody has failed."""

REASON_CROWDED = "crowded"
"""A decode worker refuses an Open for this reason while too many wait for room: it may be repeated later."""

REASON_UNREACHED = "unreached"
"""The reason of a prefill worker that cannot connect to the decode worker of a job."""
REASON_SENDER_SILENT = "sender_silent"
"""A decode worker ends a handoff for this reason when no message of its prefill worker has come for long."""


class Alive(Addressed, frozen=True, kw_only=True, tag="alive"):
    """Answers an Ask when there is nothing new: the sequence is known, and in this state."""

    key: AttemptKey
    state: Name


class Failed(Addressed, frozen=True, kw_only=True, tag="failed"):
    """This attempt has failed. `reason` is a stable word (`cancelled`, `unknown`, `deadline`, …)."""

    key: AttemptKey
    reason: Name
    message: str = ""  # for people
    retryable: bool = False  # another attempt may do better


FromWorker = Welcome | Pong | Kept | Started | Wanted | Tokens | Alive | Failed

decode_to_worker: MessageDecoder[ToWorker] = MessageDecoder(ToWorker, "gateway to worker")
decode_from_worker: MessageDecoder[FromWorker] = MessageDecoder(FromWorker, "worker to gateway")
