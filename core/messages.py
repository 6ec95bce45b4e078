"""Every message that crosses a process boundary: one union and one typed decoder per link.

All structs are frozen and tagged, and travel as msgpack. KV bytes are never inside a message: they follow a `Layer`
header as frames of their own, or through shared memory. Every message names the epoch of its sender and of the life
that it is meant for; what reaches another life is dropped and counted. Times on these links are remaining
milliseconds; jobs on Redis carry absolute seconds of the Redis server's clock.
"""

from types import UnionType
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from core.config import Codec, Security, Transport
from core.errors import MessageError
from core.ids import AttemptKey, Count, Name
from core.kvspec import WireForm

VERSION = 4
"""Of the whole protocol. Peers of different versions refuse each other, naming both."""

Finish = Literal["stop", "length"]
Samples = Annotated[tuple[Count, ...], Meta(max_length=1024)]


class Sampling(Struct, frozen=True, array_like=True):
    """How the next token is drawn. Randomness is keyed by (seed, sample, output index), so it survives a move."""

    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    temperature: Annotated[float, Meta(ge=0, le=1e6)] = 1.0  # 0 is greedy
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    top_k: Count = 0  # 0 is off
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0


class Limits(Struct, frozen=True, array_like=True):
    """When a sequence ends. They are the request's original limits, whatever attempt this is."""

    max_tokens: Count
    stop_token_ids: tuple[int, ...] = ()  # empty when the client asked to ignore the end-of-text token


class Prompt(Struct, frozen=True, array_like=True):
    """The tokens that samples begin with, and what goes with them wherever they go: job, handoff, sequence.

    `token_ids` is the client's prompt followed by what earlier attempts have emitted. (A deadline is not in here: it is
    absolute in a job, and a remainder in a message between workers.)
    """

    token_ids: list[int]
    prompt_tokens: int  # of `token_ids`, those that are the client's
    salt: Name = ""  # of the tenant: KV is reused among requests of one salt only
    priority: int = 0  # the higher the number, the earlier a sequence gives way when KV blocks run out

    @property
    def emitted(self) -> int:
        """Tokens that earlier attempts have emitted; also the output index of the next one."""
        return len(self.token_ids) - self.prompt_tokens


class Job(Struct, frozen=True, kw_only=True):
    """Tells a worker everything about a request; nobody has to ask back."""

    request: Name
    attempt: int
    sender: Name  # the gateway's epoch, also the address of the answers
    receiver: Name  # the worker's epoch
    prompt: Prompt
    sampling: Sampling
    limits: Limits
    deadline: float  # Redis server time, s
    queued_at: float  # Redis server time, s
    samples: tuple[int, ...] = (0,)  # they share the prompt; more than one only while nothing was emitted

    def attempts(self) -> list[AttemptKey]:
        """Names this attempt at each of the samples."""
        return [AttemptKey(self.request, sample, self.attempt) for sample in self.samples]


class PrefillJob(Job, frozen=True, kw_only=True, tag="prefill"):
    """Compute the prompt, sample one token, hand the sequence to the named decode worker."""

    decode_epoch: str
    decode_address: str


class DecodeJob(Job, frozen=True, kw_only=True, tag="decode"):
    """The short path: the decode worker computes the prompt itself, beside its running batch."""


AnyJob = PrefillJob | DecodeJob


class Addressed(Struct, frozen=True, kw_only=True):
    """Both ends of a message, as epochs."""

    sender: Name
    receiver: Name


# gateway -> worker ------------------------------------------------------------------------------------------------


class Hello(Addressed, frozen=True, kw_only=True, tag="hello"):
    """First message on a connection; no work before the Welcome."""

    version: int = VERSION


class Ping(Addressed, frozen=True, kw_only=True, tag="ping"):
    """Is anybody there? Answered by the I/O thread, even while a step runs."""

    number: int


class Ask(Addressed, frozen=True, kw_only=True, tag="ask"):
    """A gap or a silence: send this attempt's tokens from `next_index`, or say how it stands."""

    key: AttemptKey
    next_index: int


class Cancel(Addressed, frozen=True, kw_only=True, tag="cancel"):
    """Attempts up to and including the one named are dead. Repeated until answered with Failed."""

    key: AttemptKey


class Ended(Addressed, frozen=True, kw_only=True, tag="ended"):
    """The gateway has seen this sequence's end; the worker may forget its tokens."""

    key: AttemptKey


class Drain(Addressed, frozen=True, kw_only=True, tag="drain"):
    """Take no new work, finish what runs, then leave."""


ToWorker = Hello | Ping | Ask | Cancel | Ended | Drain

# worker -> gateway ------------------------------------------------------------------------------------------------


class Welcome(Addressed, frozen=True, kw_only=True, tag="welcome"):
    """The answer to Hello."""

    version: int = VERSION


class Pong(Addressed, frozen=True, kw_only=True, tag="pong"):
    """The answer to Ping: how many steps were done, and when the running one is expected to end (0: none runs)."""

    number: int
    steps: int
    step_due_ms: float


class Started(Addressed, frozen=True, kw_only=True, tag="started"):
    """The job for these samples was taken from the stream."""

    request: Name
    attempt: int
    samples: tuple[int, ...]


class Way(Struct, frozen=True, array_like=True):
    """How KV passes from one worker to another."""

    transport: Transport
    sealed: bool = False
    codec: Codec = "none"


class Stages(Struct, frozen=True, array_like=True):
    """What a worker knows about a sequence's way so far, for people: milliseconds and bytes, 0 where it has none.

    `exposed_ms` is what the handoff adds: from the end of the prompt's computation until all KV had landed. Each side
    measures its part, up to Commit's leaving and from its arrival on, so one crossing of the network is not in it.
    """

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    handoff_ms: float = 0.0
    handoff_bytes: int = 0
    cached_tokens: int = 0
    grant_ms: float = 0.0  # from Open to Grant
    send_ms: float = 0.0  # in which payloads were ready to leave, or under way, before Commit left
    land_ms: float = 0.0  # from Commit's arrival until all KV had landed
    exposed_ms: float = 0.0
    way: Way | None = None  # None while nothing was moved


class Emitted(Struct, frozen=True, array_like=True):
    """New tokens of one sequence: output indices `index`, `index` + 1, … The end rides with the last of them."""

    key: AttemptKey
    index: int
    token_ids: list[int]
    finish: Finish | None = None
    stages: Stages | None = None


class Tokens(Addressed, frozen=True, kw_only=True, tag="tokens"):
    """All tokens of one step for one gateway."""

    emitted: list[Emitted]


HANDED_OFF = "handed off"
"""The state that a prefill worker answers when the sequence is the decode worker's now."""

LANDING = "landing"
"""The state that a decode worker answers while the sequence's KV is on its way."""


NO_ROOM = "grant_deadline"
"""The reason of an attempt that waited too long for room on the decode worker: nobody has failed."""


SILENT = "sender_silent"
"""The decode worker's reason for ending a handoff of whose prefill worker it has heard nothing for long."""


class Alive(Addressed, frozen=True, kw_only=True, tag="alive"):
    """The answer to Ask when there is nothing new: the sequence is known and in this state."""

    key: AttemptKey
    state: Name


class Failed(Addressed, frozen=True, kw_only=True, tag="failed"):
    """This attempt is over without an end. `reason` is a stable word (`cancelled`, `unknown`, `deadline`, …)."""

    key: AttemptKey
    reason: Name
    message: str = ""
    retryable: bool = False


FromWorker = Welcome | Pong | Started | Tokens | Alive | Failed

# prefill -> decode ------------------------------------------------------------------------------------------------


class Join(Addressed, frozen=True, kw_only=True, tag="join"):
    """Among the first messages of a link: how its sender can pass KV, and its half of the session's key.

    Repeated until answered, and from time to time after that: a link that is silent for long is forgotten.
    """

    transports: tuple[Transport, ...]
    security: Security
    nonce: bytes
    version: int = VERSION


class Handoff(Addressed, frozen=True, kw_only=True):
    """A message about one handoff; the number is the sender side's, unique within its epoch."""

    handoff: int


class Open(Handoff, frozen=True, kw_only=True, tag="open"):
    """Asks for room for the KV of the prompt, all of it or nothing, once for all of its samples."""

    request: Name
    samples: Samples
    attempt: Count
    gateway: Name
    prompt: Prompt
    remaining_ms: float
    fingerprint: Name  # of the sender's pool
    form: WireForm  # of the blocks that will come
    version: int = VERSION

    def attempts(self) -> list[AttemptKey]:
        """Names this attempt at each of the samples."""
        return [AttemptKey(self.request, sample, self.attempt) for sample in self.samples]


class Layer(Handoff, frozen=True, kw_only=True, tag="layer"):
    """Header of a payload: blocks `first` … `first + count - 1` of the sequence, of one layer, in order.

    Blocks are the sender's, in the Open's form. `number` counts the payloads of this handoff from 0; `offset` is the
    link's byte count before this payload.
    """

    number: int
    group: int
    layer: int
    first: int
    count: int
    offset: int
    size: int


class Branch(Struct, frozen=True, array_like=True):
    """One sample that goes on from the prompt which all samples of its handoff share."""

    sample: Count
    emitted: list[Count]  # every token that this attempt has emitted of it


class Commit(Handoff, frozen=True, kw_only=True, tag="commit"):
    """All payloads have left: how many, their digest, the branches, and the state to go on.

    A sample of the Open that has no branch here ended with its first token, or was cancelled.
    """

    payloads: int
    size: int
    digest: int
    offset: int  # of the link, behind the last of the payloads
    index: Count  # output index of the first of each branch's `emitted`
    branches: Annotated[list[Branch], Meta(max_length=1024)]
    sampling: Sampling
    limits: Limits
    stages: Stages


class Abort(Handoff, frozen=True, kw_only=True, tag="abort"):
    """Either side gives up; repeated by the sender until answered."""

    reason: Name


class Aborted(Handoff, frozen=True, kw_only=True, tag="aborted"):
    """The answer to Abort: nothing of this handoff is held here any more."""


ToDecode = Join | Open | Layer | Commit | Abort | Aborted

# decode -> prefill ------------------------------------------------------------------------------------------------


class Offer(Addressed, frozen=True, kw_only=True, tag="offer"):
    """The answer to Join: the ways that are open for this link's payloads, and the other half of the session's key.

    What is empty or 0 is no way. Payload sockets admit `user` with `token`, and nobody else under that name.
    """

    security: Security  # of payloads over tcp
    nonce: bytes
    user: Name
    token: Name
    tcp: Annotated[int, Meta(ge=0, le=65535)] = 0  # port, of the host where the link's own socket is
    ipc: Name = ""  # endpoint
    shm: Name = ""  # path of a ring of `ring` bytes
    ring: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    version: int = VERSION


class Grant(Handoff, frozen=True, kw_only=True, tag="grant"):
    """Blocks are reserved. The sender's first `held` blocks are here already; the link may send up to `limit`."""

    held: int
    limit: int


class Credit(Addressed, frozen=True, kw_only=True, tag="credit"):
    """The link may send up to byte offset `limit`; everything before `seen` was read, or lost and will not be."""

    seen: int
    limit: int


class Accepted(Handoff, frozen=True, kw_only=True, tag="accepted"):
    """The decode worker owns the sequence; the prefill worker may unpin its blocks."""


class Refused(Handoff, frozen=True, kw_only=True, tag="refused"):
    """The Open cannot be granted, now or ever."""

    reason: Name
    message: str = ""
    retryable: bool = True


ToPrefill = Offer | Grant | Credit | Accepted | Refused | Abort | Aborted

# codecs -----------------------------------------------------------------------------------------------------------

encode = msgspec.msgpack.Encoder().encode

T = TypeVar("T")


class MessageDecoder(Generic[T]):
    """Turns bytes into messages of one kind of connection. Raises `MessageError` for anything else."""

    def __init__(self, union: type[T] | UnionType, link: str) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self._link = link

    def __call__(self, data: bytes | memoryview) -> T:
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MessageError(f"not a message of the {self._link} link: {type(error).__name__}") from None


decode_job: MessageDecoder[AnyJob] = MessageDecoder(AnyJob, "job")
decode_to_worker: MessageDecoder[ToWorker] = MessageDecoder(ToWorker, "gateway to worker")
decode_from_worker: MessageDecoder[FromWorker] = MessageDecoder(FromWorker, "worker to gateway")
decode_to_decode: MessageDecoder[ToDecode] = MessageDecoder(ToDecode, "prefill to decode")
decode_layer: MessageDecoder[Layer] = MessageDecoder(Layer, "payload")
decode_to_prefill: MessageDecoder[ToPrefill] = MessageDecoder(ToPrefill, "decode to prefill")
