"""Messages between gateways and workers, with one union for each direction."""

from typing import Annotated

from msgspec import Meta, Struct

from contracts.ids import NO_TICKET, AttemptKey, Count, Name, Ticket
from contracts.kinds import Codec, Transport
from contracts.kv.block_hash import SHORT_KEY_BYTES
from contracts.messages.packed_ids import ID_BYTES, IDS_PER_PIECE
from contracts.messages.sampling import Finish, Samples
from contracts.messages.wire import VERSION, Addressed, MessageDecoder
from contracts.scores import Scores
from pricing.routes.backlog import Backlog

NOT_HEARD = -1  # a gateway's position in a worker's key news before it has read all keys
MAX_KEYS_IN_MESSAGE = 4096
JoinedKeys = Annotated[bytes, Meta(max_length=MAX_KEYS_IN_MESSAGE * SHORT_KEY_BYTES)]

# gateway -> worker ------------------------------------------------------------------------------------------------


class Hello(Addressed, frozen=True, kw_only=True, tag="hello"):
    """Begins a connection. Other messages are ignored before the Welcome."""

    version: int = VERSION


class Ping(Addressed, frozen=True, kw_only=True, tag="ping"):
    """Asks whether the worker lives. The I/O thread answers, even while a step runs."""

    number: int  # repeated in the Pong
    keys: int = NOT_HEARD  # last change of the worker's keys that was read


MAX_QUESTIONS = 256  # in one `Ask`


class Question(Struct, frozen=True, array_like=True):
    """Asks for an attempt's tokens: its key, and the output index of the first token that the gateway lacks."""

    key: AttemptKey
    next_index: int


class Ask(Addressed, frozen=True, kw_only=True, tag="ask"):
    """Asks for attempts' tokens or states, after gaps or silence. Each attempt is answered."""

    asked: Annotated[tuple[Question, ...], Meta(max_length=MAX_QUESTIONS)]


class Cancel(Addressed, frozen=True, kw_only=True, tag="cancel"):
    """Ends this attempt and lower attempts. Repeated until answered with Failed."""

    key: AttemptKey


class Ended(Addressed, frozen=True, kw_only=True, tag="ended"):
    """The gateway has read this attempt's end; the worker may forget its tokens."""

    key: AttemptKey


class Drain(Addressed, frozen=True, kw_only=True, tag="drain"):
    """Asks the worker to take no new work, finish what runs, and leave."""


class Piece(Addressed, frozen=True, kw_only=True, tag="piece"):
    """Ids of a job's prompt from `first` on: the answer to Wanted."""

    request: Name
    attempt: Count
    first: Count
    ids: Annotated[bytes, Meta(max_length=IDS_PER_PIECE * ID_BYTES)]  # packed

    def __post_init__(self) -> None:
        """Raises `ValueError` for a fraction of an id."""
        if len(self.ids) % ID_BYTES:
            raise ValueError(f"{len(self.ids)} bytes are no whole token ids")


ToWorker = Hello | Ping | Ask | Cancel | Ended | Drain | Piece

# worker -> gateway ------------------------------------------------------------------------------------------------


class Welcome(Addressed, frozen=True, kw_only=True, tag="welcome"):
    """Answers a Hello. Work may begin if the versions agree."""

    version: int = VERSION


class Pong(Addressed, frozen=True, kw_only=True, tag="pong"):
    """Answers a Ping with the worker's progress, the tickets of taken jobs, and its backlog.

    Jobs on the stream with a higher ticket than `taken` are queued. All others were answered by `Started` before this
    message, or are lost.
    """

    number: int
    steps: int  # since the worker's start
    step_due_ms: float  # until the running round is overdue, negative after that; 0: the engine is idle
    taken: Ticket = NO_TICKET
    backlog: Backlog | None = None  # includes the jobs up to `taken`; None: not reported


class KeyNews(Struct, frozen=True, array_like=True):
    """Keys of the full blocks that a worker's cache has gained and lost, or one piece of the list of all its keys.

    Keys are joined short keys (`contracts/kv/block_hash.py`).
    """

    first: int  # changes after this number, …
    upto: int  # … up to this one; of a piece: all keys as of this change
    kept: JoinedKeys  # gained
    lost: JoinedKeys
    piece: Annotated[int, Meta(ge=0)] = 0
    pieces: Annotated[int, Meta(ge=0, le=64)] = 0  # 0: changes

    def __post_init__(self) -> None:
        """Raises `ValueError` for a fraction of a key, or an impossible piece."""
        if (
            len(self.kept) % SHORT_KEY_BYTES
            or len(self.lost) % SHORT_KEY_BYTES
            or (self.pieces and self.piece >= self.pieces)
        ):
            raise ValueError("joined keys of another length, or a piece that there is not")


class Kept(Addressed, frozen=True, kw_only=True, tag="kept"):
    """Tells gateways which blocks a worker caches, so that they route prompts to the workers with their KV."""

    news: KeyNews


class Started(Addressed, frozen=True, kw_only=True, tag="started"):
    """The worker has taken the job for these samples from its stream."""

    request: Name
    attempt: int
    samples: tuple[int, ...]


class Wanted(Addressed, frozen=True, kw_only=True, tag="wanted"):
    """Asks for the ids of a job's prompt from `first` on. Repeated until a Piece or Cancel answers it."""

    request: Name
    attempt: Count
    samples: Samples
    first: Count


class Way(Struct, frozen=True, array_like=True):
    """How KV was sent from one worker to another: transport, sealing, codec."""

    transport: Transport
    sealed: bool = False
    codec: Codec = "none"


class Stages(Struct, frozen=True, array_like=True):
    """Times of a sequence so far, in ms, with bytes and tokens; 0 for stages that it has not reached.

    `exposed_ms` is the handoff's added latency, from the end of the prompt's computation until all KV had landed. Each
    side measures its part, before Commit was sent and after it arrived, so one network crossing is missing.
    """

    queue_ms: float = 0.0  # from the job's addition until the prompt had its blocks
    prefill_ms: float = 0.0  # from then to the first token
    handoff_ms: float = 0.0  # from the Open's arrival until all KV had landed
    handoff_bytes: int = 0  # landed
    cached_tokens: int = 0  # of the prompt, with cached KV
    grant_ms: float = 0.0  # from Open to Grant
    send_ms: float = 0.0  # with payloads ready or under way, before Commit was sent
    land_ms: float = 0.0  # from Commit's arrival until all KV had landed
    exposed_ms: float = 0.0
    way: Way | None = None  # None if nothing was moved


class Emitted(Struct, frozen=True, array_like=True):
    """New tokens of one sequence, with output indices from `index` on. The last tokens carry the end."""

    key: AttemptKey
    index: int
    token_ids: list[int]
    finish: Finish | None = None  # how the last token ended the sequence
    stages: Stages | None = None
    scores: Scores | None = None  # of these tokens, if requested
    prompt_scores: Scores | None = None  # of the prompt's tokens except the first: with output index 0 of a request
    vector: bytes = b""  # fp32, the result of a text that is pooled: with the end, in place of tokens

    def __post_init__(self) -> None:
        """Raises `ValueError` if scores and tokens differ in number."""
        if self.scores is not None and len(self.scores) != len(self.token_ids):
            raise ValueError(f"{len(self.scores)} scores of {len(self.token_ids)} tokens")


class Tokens(Addressed, frozen=True, kw_only=True, tag="tokens"):
    """All tokens of one step for one gateway."""

    emitted: list[Emitted]


STATE_HANDING_OFF = "handing off"
"""State on a prefill worker that is done, until the decode worker has accepted the sequence.

The decode worker may not know of it yet.
"""

STATE_HANDED_OFF = "handed off"  # state on a prefill worker when the decode worker owns the sequence

STATE_LANDING = "landing"  # state on a decode worker while the sequence's KV is on its way

REASON_GRAMMAR_FAILED = "grammar_failed"  # the sequence's grammar could not be followed any further
REASON_NOTHING_ALLOWED = "nothing_allowed"  # the client's own parameters together forbid every token

REASON_NO_ROOM = "grant_deadline"  # a decode worker did not grant blocks in time; no component failed

REASON_NO_ADAPTER = "no_adapter"  # the worker lacks the prompt's adapter; another worker may have it

REASON_DRAINING = "draining"  # the worker was told to stop; no component failed

REASON_CROWDED = "crowded"  # too many handoffs wait for blocks on the decode worker; the Open may be repeated later

REASON_UNREACHED = "unreached"  # the prefill worker cannot connect to the job's decode worker
REASON_SENDER_SILENT = "sender_silent"  # the decode worker has had no message of the prefill worker for long


class Alive(Addressed, frozen=True, kw_only=True, tag="alive"):
    """Answers an Ask if there are no new tokens: the attempt is known, and in this state."""

    key: AttemptKey
    state: Name


class Failed(Addressed, frozen=True, kw_only=True, tag="failed"):
    """This attempt has failed. `reason` is a stable word (`cancelled`, `unknown`, `deadline`, …)."""

    key: AttemptKey
    reason: Name
    message: str = ""  # for people
    retryable: bool = False  # another attempt may succeed


News = Started | Wanted | Tokens | Alive | Failed  # of sequences
FromWorker = Welcome | Pong | Kept | News

decode_to_worker: MessageDecoder[ToWorker] = MessageDecoder(ToWorker, "gateway to worker")
decode_from_worker: MessageDecoder[FromWorker] = MessageDecoder(FromWorker, "worker to gateway")
