"""Defines the messages of a handoff, between prefill and decode workers, one union for each way.

KV bytes are never inside a message: they follow a `Layer` header as frames of their own, or through shared memory.
"""

from typing import Annotated

from msgspec import Meta, Struct, structs

from contracts.ids import AttemptKey, Count, Name
from contracts.kinds import Security, Transport
from contracts.kv.spec import WireForm
from contracts.messages.gateway import Stages
from contracts.messages.job import Prompt
from contracts.messages.packed_ids import ID_BYTES, unpacked
from contracts.messages.sampling import Limits, Samples, Sampling
from contracts.messages.wire import VERSION, Addressed, MessageDecoder
from contracts.scores import Scores

# prefill -> decode ------------------------------------------------------------------------------------------------


class Join(Addressed, frozen=True, kw_only=True, tag="join"):
    """Begins a link: says how its sender can pass KV, and gives its half of the session's key.

    It is repeated until answered, and from time to time after that: a link that is silent for long is forgotten.
    """

    transports: tuple[Transport, ...]
    security: Security  # of payloads over tcp
    nonce: bytes  # the sender's half of the key
    connections: Annotated[int, Meta(ge=1, le=16)] = 1  # that payloads will come over, if by tcp
    version: int = VERSION


class Handoff(Addressed, frozen=True, kw_only=True):
    """Names one handoff; the prefill worker chooses the number, unique within its epoch."""

    handoff: int


class Open(Handoff, frozen=True, kw_only=True, tag="open"):
    """Asks for room for the KV of the prompt, all of it or nothing, once for all of its samples.

    The prompt's ids are bytes, of which the engine's thread makes numbers: an event loop would stand still for that.
    """

    request: Name
    samples: Samples
    attempt: Count
    gateway: Name  # its epoch
    prompt: Prompt  # without its ids
    ids: bytes = b""  # of the prompt, packed
    remaining_ms: float  # until the request's deadline
    due_ms: float  # until its first token is due; negative: it is late
    fingerprint: Name  # of the sender's pool
    form: WireForm  # of the blocks that will come
    version: int = VERSION

    @property
    def tokens(self) -> int:
        """Counts the prompt's tokens."""
        return len(self.ids) // ID_BYTES

    def whole_prompt(self) -> Prompt:
        """Returns the prompt with its ids, which takes a quarter of a millisecond for each 16,384 of them."""
        return structs.replace(self.prompt, token_ids=unpacked(self.ids))

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


MAX_STATE_BYTES = 1 << 17
"""Bytes of a hidden state at most."""


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
    state: Annotated[bytes, Meta(max_length=MAX_STATE_BYTES)] = b""
    """The hidden state of the prompt's last token, fp32 `[hidden]`, for a head that reads those; empty: none does."""


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

decode_to_decode: MessageDecoder[ToDecode] = MessageDecoder(ToDecode, "prefill to decode")
decode_layer: MessageDecoder[Layer] = MessageDecoder(Layer, "prefill to decode, for a payload")
decode_to_prefill: MessageDecoder[ToPrefill] = MessageDecoder(ToPrefill, "decode to prefill")
