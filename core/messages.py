"""Defines every message that crosses a process boundary: one union and one typed decoder for each way.

All structs are frozen and tagged, and travel as msgpack. KV bytes are never inside a message: they follow a `Layer`
header as frames of their own, or through shared memory. Every message names the epoch of its sender and of the life
that it is meant for; what reaches another life is dropped and counted. Times between processes are remaining
milliseconds; jobs on Redis carry absolute seconds of the Redis server's clock.
"""

from types import UnionType
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from core.config import Codec, Security, Transport
from core.errors import MessageError
from core.ids import NO_TICKET, AttemptKey, Count, Name, Ticket
from core.kvspec import WireForm
from core.scores import MOST_TOP, Scores

VERSION = 8
"""The version of the whole protocol. Peers of different versions refuse each other, naming both."""

Finish = Literal["stop", "length"]
Samples = Annotated[tuple[Count, ...], Meta(max_length=1024)]

TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
TokenIds = tuple[TokenId, ...]
TokenBiases = tuple[tuple[TokenId, Annotated[float, Meta(ge=-1e6, le=1e6)]], ...]
Top = Annotated[int, Meta(ge=0, le=MOST_TOP)]

COLDEST = 2.0**-29
"""The least temperature above 0, about 2e-9; lower ones are 0. All samplers compute logits / temperature in fp32.

There, a largest logit of 1 or more leads every lower one by 2^-24 at least, so at this temperature by 32, which no
noise can bridge: it spans less than 26, from -2.8 to 22.5. Below, then, a draw is the largest logit.
From here on the quotient is finite for all logits below `LARGEST_LOGIT`.
"""
LARGEST_LOGIT = 2.0**128 * COLDEST


class Sampling(Struct, frozen=True, array_like=True):
    """Says how the next token is drawn. Randomness is keyed by (seed, sample, output index), so it survives a move."""

    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    temperature: Annotated[float, Meta(ge=0, le=1e6)] = 1.0  # 0 is greedy
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    top_k: Count = 0  # 0 is off
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=1e6)] = 1.0  # of tokens in prompt and output; 1 is off
    presence_penalty: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0  # of tokens in the output
    frequency_penalty: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0  # of each time that a token is in the output
    logit_bias: TokenBiases = ()
    allowed_token_ids: TokenIds | None = None  # no others are drawn; None: all
    bad_words: tuple[TokenIds, ...] = ()  # token sequences of which none may come to be in the output
    grammar: str = ""  # in Lark, as llguidance reads it: what the output has to be; empty: anything
    logprobs: Top | None = None  # alternatives that are told of each output token; None: not even its own probability
    prompt_logprobs: Top | None = None  # the same of the prompt's tokens, but for the first

    @property
    def looks_back(self) -> bool:
        """Tells whether a draw depends on the tokens before it, and not only on their KV."""
        penalties = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return penalties or bool(self.bad_words or self.grammar)

    def __post_init__(self) -> None:
        """Makes a temperature that is below `COLDEST` 0, here, so that no two samplers can draw the line elsewhere."""
        if self.temperature < COLDEST:
            force_setattr(self, "temperature", 0.0)


class Limits(Struct, frozen=True, array_like=True):
    """Says when a sequence ends: the request's original limits, whatever attempt this is."""

    max_tokens: Count  # output tokens, over all attempts
    stop_token_ids: tuple[int, ...] = ()  # the end-of-text tokens, unless they are ignored, and the client's
    min_tokens: Count = 0  # output tokens before which none of those is drawn


class Prompt(Struct, frozen=True, array_like=True):
    """Holds the tokens that samples begin with, and what goes with them wherever they go: job, handoff, sequence.

    `token_ids` is the client's prompt followed by what earlier attempts have emitted. (A deadline is not in here: it is
    absolute in a job, and a remainder in a message between workers.)
    """

    token_ids: list[int]
    prompt_tokens: int  # how many of `token_ids` are the client's
    salt: Name = ""  # the tenant's: KV is reused among requests of one salt only
    priority: int = 0  # the higher the number, the earlier a sequence gives way when KV blocks run out
    adapter: Name = ""  # digest of the adapter that computes them (`core/adapters.py`); empty: the model alone

    @property
    def emitted(self) -> int:
        """Counts the tokens that earlier attempts have emitted; also the output index of the next one."""
        return len(self.token_ids) - self.prompt_tokens


class Job(Struct, frozen=True, kw_only=True):
    """Tells a worker everything about a request; nobody has to ask back."""

    request: Name
    attempt: int
    sender: Name  # the gateway's epoch; answers go there
    receiver: Name  # the worker's epoch
    prompt: Prompt
    sampling: Sampling
    limits: Limits
    deadline: float  # Redis server time, s
    queued_at: float  # when the gateway added the job: Redis server time, s
    samples: tuple[int, ...] = (0,)  # which share the prompt; more than one only while nothing was emitted

    def attempts(self) -> list[AttemptKey]:
        """Names this attempt at each of the samples."""
        return [AttemptKey(self.request, sample, self.attempt) for sample in self.samples]


class PrefillJob(Job, frozen=True, kw_only=True, tag="prefill"):
    """Asks a prefill worker to compute the prompt, sample one token, and hand over to the named decode worker."""

    decode_epoch: str
    decode_address: str


class DecodeJob(Job, frozen=True, kw_only=True, tag="decode"):
    """Asks a decode worker to compute the prompt itself, beside its running batch: the short path."""


AnyJob = PrefillJob | DecodeJob


class Addressed(Struct, frozen=True, kw_only=True):
    """Names both ends of a message by their epochs."""

    sender: Name
    receiver: Name


# gateway -> worker ------------------------------------------------------------------------------------------------


class Hello(Addressed, frozen=True, kw_only=True, tag="hello"):
    """Begins a connection; nothing else is listened to before the Welcome."""

    version: int = VERSION


class Ping(Addressed, frozen=True, kw_only=True, tag="ping"):
    """Asks whether the worker lives; the I/O thread answers, even while a step runs."""

    number: int  # repeated in the Pong


class Ask(Addressed, frozen=True, kw_only=True, tag="ask"):
    """Asks, after a gap or a silence, for this attempt's tokens from `next_index`, or how it stands."""

    key: AttemptKey
    next_index: int


class Cancel(Addressed, frozen=True, kw_only=True, tag="cancel"):
    """Kills the attempts up to and including the one named. Repeated until answered with Failed."""

    key: AttemptKey


class Ended(Addressed, frozen=True, kw_only=True, tag="ended"):
    """The gateway has seen this sequence's end; the worker may forget its tokens."""

    key: AttemptKey


class Drain(Addressed, frozen=True, kw_only=True, tag="drain"):
    """Asks the worker to take no new work, finish what runs, and leave."""


ToWorker = Hello | Ping | Ask | Cancel | Ended | Drain

# worker -> gateway ------------------------------------------------------------------------------------------------


class Welcome(Addressed, frozen=True, kw_only=True, tag="welcome"):
    """Answers a Hello; work may begin if the versions agree."""

    version: int = VERSION


class Pong(Addressed, frozen=True, kw_only=True, tag="pong"):
    """Answers a Ping: how many steps were done, when the engine's round is overdue, and how far the jobs were taken.

    What is on the stream with a higher ticket than `taken` waits its turn. Everything else was answered by `Started`
    before this left, or is lost.
    """

    number: int
    steps: int  # since the worker's start
    step_due_ms: float  # remaining ms, negative once it is overdue; 0: the engine has nothing to do
    taken: Ticket = NO_TICKET


class Started(Addressed, frozen=True, kw_only=True, tag="started"):
    """A worker has taken the job for these samples from its stream."""

    request: Name
    attempt: int
    samples: tuple[int, ...]


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


HANDING_OFF = "handing off"
"""A prefill worker answers this state when its work is done, and the decode worker has not accepted the sequence yet.

Until then the decode worker may not even know of it.
"""

HANDED_OFF = "handed off"
"""A prefill worker answers this state when the sequence is the decode worker's now."""

LANDING = "landing"
"""A decode worker answers this state while the sequence's KV is on its way."""

GRAMMAR_FAILED = "grammar_failed"
"""Why an attempt failed: its grammar could not be followed any further."""
NOTHING_ALLOWED = "nothing_allowed"
"""An attempt fails for this reason when the client's own parameters together forbid every token."""

NO_ROOM = "grant_deadline"
"""An attempt fails for this reason when a decode worker has long not answered the question for room: nobody failed."""

NO_ADAPTER = "no_adapter"
"""An attempt fails for this reason when a worker lacks the adapter of its prompt; another may have it."""

DRAINING = "draining"
"""An attempt fails for this reason when a worker was told to stop: somebody has planned it, and nobody has failed."""

CROWDED = "crowded"
"""A decode worker refuses an Open for this reason while too many wait for room: it may be repeated later."""

SILENT = "sender_silent"
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


FromWorker = Welcome | Pong | Started | Tokens | Alive | Failed

# prefill -> decode ------------------------------------------------------------------------------------------------


class Join(Addressed, frozen=True, kw_only=True, tag="join"):
    """Begins a link: says how its sender can pass KV, and gives its half of the session's key.

    It is repeated until answered, and from time to time after that: a link that is silent for long is forgotten.
    """

    transports: tuple[Transport, ...]
    security: Security  # of payloads over tcp
    nonce: bytes  # the sender's half of the key
    version: int = VERSION


class Handoff(Addressed, frozen=True, kw_only=True):
    """Names one handoff; the prefill worker chooses the number, unique within its epoch."""

    handoff: int


class Open(Handoff, frozen=True, kw_only=True, tag="open"):
    """Asks for room for the KV of the prompt, all of it or nothing, once for all of its samples."""

    request: Name
    samples: Samples
    attempt: Count
    gateway: Name  # its epoch
    prompt: Prompt
    remaining_ms: float  # until the request's deadline
    fingerprint: Name  # of the sender's pool
    form: WireForm  # of the blocks that will come
    version: int = VERSION

    def attempts(self) -> list[AttemptKey]:
        """Names this attempt at each of the samples."""
        return [AttemptKey(self.request, sample, self.attempt) for sample in self.samples]


class Remind(Handoff, frozen=True, kw_only=True, tag="remind"):
    """Repeats, without its tokens, an Open that the decode worker has said it knows."""


class Layer(Handoff, frozen=True, kw_only=True, tag="layer"):
    """Heads a payload: blocks `first` … `first + count - 1` of the sequence, of one layer, in order.

    Blocks are the sender's, in the Open's form.
    """

    number: int  # counts the payloads of this handoff from 0
    group: int  # index of the KVSpec's group
    layer: int
    first: int  # index of a block in the sequence
    count: int  # how many blocks
    offset: int  # the link's byte count before this payload
    size: int  # bytes


class Branch(Struct, frozen=True, array_like=True):
    """Names a sample that goes on from the prompt which all samples of its handoff share."""

    sample: Count
    emitted: list[Count]  # every token of it that this attempt has emitted
    scores: Scores | None = None  # of these tokens, if the request wants them

    def __post_init__(self) -> None:
        """Raises `ValueError` for scores that are not of these tokens."""
        if self.scores is not None and len(self.scores) != len(self.emitted):
            raise ValueError(f"{len(self.scores)} scores of {len(self.emitted)} tokens")


class Commit(Handoff, frozen=True, kw_only=True, tag="commit"):
    """All payloads have left: says how many, their digest, the branches, and the state to go on.

    A sample of the Open that has no branch here ended with its first token, or was cancelled.
    """

    payloads: int
    size: int  # bytes of all payloads
    digest: int  # sum of the payloads' digests, modulo 2**64
    offset: int  # the link's byte count behind the last payload
    index: Count  # output index of the first of each branch's `emitted`
    branches: Annotated[list[Branch], Meta(max_length=1024)]
    sampling: Sampling
    limits: Limits
    stages: Stages
    prompt_scores: Scores | None = None  # as the `Emitted` of the first branch's first token has them


class Abort(Handoff, frozen=True, kw_only=True, tag="abort"):
    """One side gives the handoff up; a prefill worker repeats this until it is answered."""

    reason: Name


class Aborted(Handoff, frozen=True, kw_only=True, tag="aborted"):
    """Answers an Abort: nothing of this handoff is held here any more."""


ToDecode = Join | Open | Remind | Layer | Commit | Abort | Aborted

# decode -> prefill ------------------------------------------------------------------------------------------------


class Offer(Addressed, frozen=True, kw_only=True, tag="offer"):
    """Answers a Join: names the ways open to the link's payloads, and gives the other half of the session's key.

    A way whose field is empty or 0 is closed. Payload sockets admit `user` with `token`, and nobody else by that name.
    """

    security: Security  # of payloads over tcp
    nonce: bytes  # the sender's half of the key
    user: Name
    token: Name
    tcp: Annotated[int, Meta(ge=0, le=65535)] = 0  # port on the host of the control socket
    ipc: Name = ""  # endpoint of a Unix socket
    shm: Name = ""  # path of a ring in shared memory
    ring: Annotated[int, Meta(ge=0, le=1 << 40)] = 0  # bytes of that ring
    version: int = VERSION


class Waiting(Handoff, frozen=True, kw_only=True, tag="waiting"):
    """Answers a repeated Open, or a Remind: the handoff is known, and in the line for room."""


class Grant(Handoff, frozen=True, kw_only=True, tag="grant"):
    """The decode worker grants room: blocks are reserved for the whole prompt."""

    held: Annotated[list[Count], Meta(max_length=1024)]
    """Leading blocks of the sender's, for each KV group, that need not come: their KV is here, or not needed."""
    limit: int  # byte offset up to which the link may send


class Credit(Addressed, frozen=True, kw_only=True, tag="credit"):
    """The link may send more. Offsets count all payload bytes that it has ever sent."""

    seen: int  # byte offset: everything before it was read, or is lost
    limit: int  # byte offset up to which the link may send


class Accepted(Handoff, frozen=True, kw_only=True, tag="accepted"):
    """The decode worker owns the sequence now; the prefill worker may unpin its blocks."""


class Refused(Handoff, frozen=True, kw_only=True, tag="refused"):
    """The decode worker refuses an Open, which it cannot grant now or ever."""

    reason: Name
    message: str = ""  # for people
    retryable: bool = True  # another attempt may do better


ToPrefill = Offer | Waiting | Grant | Credit | Accepted | Refused | Abort | Aborted

# codecs -----------------------------------------------------------------------------------------------------------

encode = msgspec.msgpack.Encoder().encode

T = TypeVar("T")


class MessageDecoder(Generic[T]):
    """Turns bytes into messages of one way, such as from gateway to worker. Raises `MessageError` for anything else."""

    def __init__(self, union: type[T] | UnionType, way: str) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self._way = way

    def __call__(self, data: bytes | memoryview) -> T:
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MessageError(f"not a message from {self._way}: {type(error).__name__}") from None


decode_job: MessageDecoder[AnyJob] = MessageDecoder(AnyJob, "gateway to queue")
decode_to_worker: MessageDecoder[ToWorker] = MessageDecoder(ToWorker, "gateway to worker")
decode_from_worker: MessageDecoder[FromWorker] = MessageDecoder(FromWorker, "worker to gateway")
decode_to_decode: MessageDecoder[ToDecode] = MessageDecoder(ToDecode, "prefill to decode")
decode_layer: MessageDecoder[Layer] = MessageDecoder(Layer, "prefill to decode, for a payload")
decode_to_prefill: MessageDecoder[ToPrefill] = MessageDecoder(ToPrefill, "decode to prefill")
