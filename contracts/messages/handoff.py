"""Messages of a handoff between prefill and decode workers, with one union for each direction.

KV is never inside a message: it follows a `Layer` header in frames of its own, or passes through shared memory.
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
    """Begins a link: the sender's transports, and its half of the session key's salt.

    Repeated until answered, and occasionally after that, since a silent link is forgotten.
    """

    transports: tuple[Transport, ...]
    security: Security  # of payloads over tcp
    nonce: bytes  # the sender's half of the salt
    connections: Annotated[int, Meta(ge=1, le=16)] = 1  # for payloads over tcp
    version: int = VERSION


class Handoff(Addressed, frozen=True, kw_only=True):
    """A handoff's messages. The prefill worker chooses the number, unique within its epoch."""

    handoff: int


class Open(Handoff, frozen=True, kw_only=True, tag="open"):
    """Asks for all blocks of a prompt, once for all of its samples.

    The prompt's ids are packed, and stay so: making an object of each would block an event loop.
    """

    request: Name
    samples: Samples
    attempt: Count
    gateway: Name  # epoch
    prompt: Prompt  # without its ids
    ids: bytes = b""  # of the prompt, packed
    remaining_ms: float  # until the request's deadline
    due_ms: float  # until the first token is due; negative if it is late
    fingerprint: Name  # of the sender's pool
    form: WireForm  # of the payloads
    version: int = VERSION

    @property
    def tokens(self) -> int:
        """The prompt's length in tokens."""
        return len(self.ids) // ID_BYTES

    def whole_prompt(self) -> Prompt:
        """Returns the prompt with its ids."""
        return structs.replace(self.prompt, token_ids=unpacked(self.ids))

    def attempts(self) -> list[AttemptKey]:
        return [AttemptKey(self.request, sample, self.attempt) for sample in self.samples]


class Remind(Handoff, frozen=True, kw_only=True, tag="remind"):
    """Repeats, without the ids, an Open that the decode worker has confirmed."""


class Layer(Handoff, frozen=True, kw_only=True, tag="layer"):
    """Header of a payload: blocks `first` … `first + count - 1` of the sequence, of one layer, in order.

    Blocks are the sender's, in the Open's form.
    """

    number: int  # counts the payloads of this handoff from 0
    group: int  # index of the KVSpec's group
    layer: int
    first: int  # index of a block in the sequence
    count: int  # of blocks
    offset: int  # the link's byte count before this payload
    size: int  # bytes


class Branch(Struct, frozen=True, array_like=True):
    """A sample that continues from the shared prompt of its handoff."""

    sample: Count
    emitted: list[Count]  # all tokens of this attempt so far
    scores: Scores | None = None  # of these tokens, if requested

    def __post_init__(self) -> None:
        """Raises `ValueError` if scores and tokens differ in number."""
        if self.scores is not None and len(self.scores) != len(self.emitted):
            raise ValueError(f"{len(self.scores)} scores of {len(self.emitted)} tokens")


MAX_STATE_BYTES = 1 << 17  # of a hidden state


class Commit(Handoff, frozen=True, kw_only=True, tag="commit"):
    """All payloads were sent: their number and digest, the branches, and the settings to continue.

    A sample of the Open without a branch ended with its first token, or was cancelled.
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
    prompt_scores: Scores | None = None  # carried by the first branch's first token
    state: Annotated[bytes, Meta(max_length=MAX_STATE_BYTES)] = b""
    """Hidden state of the prompt's last token, fp32 `[hidden]`, for draft heads that need it; else empty."""


class Abort(Handoff, frozen=True, kw_only=True, tag="abort"):
    """One side gives the handoff up. A prefill worker repeats this until it is answered."""

    reason: Name


class Aborted(Handoff, frozen=True, kw_only=True, tag="aborted"):
    """Answers an Abort: this side holds nothing of the handoff any more."""


ToDecode = Join | Open | Remind | Layer | Commit | Abort | Aborted

# decode -> prefill ------------------------------------------------------------------------------------------------


class NixlMemory(Struct, frozen=True, array_like=True):
    """Memory of this worker into which the link's sender may write by NIXL."""

    agent: Annotated[bytes, Meta(max_length=1 << 16)]  # the library's description of an agent and its registrations
    address: Annotated[int, Meta(ge=0, le=(1 << 62))]
    size: Annotated[int, Meta(ge=1, le=1 << 40)]  # bytes


class Offer(Addressed, frozen=True, kw_only=True, tag="offer"):
    """Answers a Join: the transports open to the link's payloads, and the other half of the salt.

    An empty or 0 field closes its transport. Payload sockets admit `user` with `token`; the Unix socket for descriptors
    takes one that comes with both.
    """

    security: Security  # of payloads over tcp
    nonce: bytes  # the sender's half of the salt
    user: Name
    token: Name
    tcp: Annotated[int, Meta(ge=0, le=65535)] = 0  # port on the host of the control socket
    ipc: Name = ""  # endpoint of a Unix socket
    shm: Name = ""  # path of the Unix socket that takes a ring, or a socket by which the pool's memory is asked for
    ring: Annotated[int, Meta(ge=0, le=1 << 40)] = 0  # bytes of that ring, which the sender makes
    pool: Name = ""  # fingerprint of the decode worker's pool, if processes of its host may write KV into it
    counts: Annotated[tuple[Count, ...], Meta(max_length=1024)] = ()  # blocks of each KV group of that pool
    devices: Annotated[bytes, Meta(max_length=1 << 16)] = b""  # how GPUs of its host reach that pool, if it is in GPUs
    nixl: NixlMemory | None = None
    version: int = VERSION


class Waiting(Handoff, frozen=True, kw_only=True, tag="waiting"):
    """Answers a repeated Open, or a Remind: the handoff is known, and queued for blocks."""


class Grant(Handoff, frozen=True, kw_only=True, tag="grant"):
    """Grants blocks for the whole prompt."""

    held: Annotated[list[Count], Meta(max_length=1024)]
    """The sender's leading blocks, for each KV group, that need not come: they are cached here, or not needed."""
    limit: int  # byte offset up to which the link may send
    blocks: Annotated[tuple[list[Count], ...], Meta(max_length=1024)] = ()
    """Each group's block table in the decode worker's pool, for a sender that writes into it."""


class Credit(Addressed, frozen=True, kw_only=True, tag="credit"):
    """Lets the link send more. Offsets count all payload bytes ever sent on it."""

    seen: int  # byte offset up to which everything was read, or is lost
    limit: int  # byte offset up to which the link may send


class Accepted(Handoff, frozen=True, kw_only=True, tag="accepted"):
    """The decode worker owns the sequence now; the prefill worker may unpin its blocks."""


class Refused(Handoff, frozen=True, kw_only=True, tag="refused"):
    """Refuses an Open, for now or for ever."""

    reason: Name
    message: str = ""  # for people
    retryable: bool = True  # another attempt may succeed


ToPrefill = Offer | Waiting | Grant | Credit | Accepted | Refused | Abort | Aborted

decode_to_decode: MessageDecoder[ToDecode] = MessageDecoder(ToDecode, "prefill to decode")
decode_layer: MessageDecoder[Layer] = MessageDecoder(Layer, "prefill to decode, for a payload")
decode_to_prefill: MessageDecoder[ToPrefill] = MessageDecoder(ToPrefill, "decode to prefill")
