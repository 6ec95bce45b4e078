"""What the two state machines answer: messages to send, bytes to land, and events for the worker's engine.

`Send` and `Land` are carried out by the drivers. The other structs go to the worker as they are. On the prefill side
every opened handoff ends in one `Closed` and then one `Unpinned`. On the decode side every `Wanted` ends in one
`Landed` or one `Dropped`, unless the worker itself refuses it; a `Landed` one may still be dropped (`owned`) by a
cancel or a higher attempt.
"""

from typing import Literal, NamedTuple

from msgspec import Struct

from core.kvspec import Piece
from core.messages import Addressed, Branch, Commit, Layer, Limits, Offer, Open, Sampling, Stages
from kvtransfer.digest import Place

Outcome = Literal["accepted", "failed", "done"]


class HandoffKey(NamedTuple):
    """A handoff, as the decode side knows it."""

    sender: str  # epoch of the prefill worker
    handoff: int


class OpenRequest(Struct, frozen=True, kw_only=True):
    """The prompt whose KV is handed off, once for all `samples`. `token_ids` are the tokens that the KV covers."""

    request: str
    samples: tuple[int, ...]
    attempt: int
    gateway: str
    token_ids: list[int]
    prompt_tokens: int
    remaining_ms: float
    salt: str = ""
    priority: int = 0


class FirstTokens(Struct, frozen=True, kw_only=True):
    """What `Commit` carries besides the counts: the branches with this attempt's tokens, and the state to go on."""

    index: int
    branches: list[Branch]
    sampling: Sampling
    limits: Limits
    stages: Stages
    age: float = 0.0  # seconds since the end of the prompt's computation


class Send(Struct, frozen=True):
    """Send `message`; on the decode side over the link (the peer's routing id) that it came from."""

    message: Addressed
    link: bytes = b""


class Land(Struct, frozen=True):
    """Write the payload of `header` into these blocks of the pool, or convert it, then report its digest."""

    key: HandoffKey
    header: Layer
    blocks: list[int] | Piece


class HandoffTimes(Struct, frozen=True):
    """What the stages of a handoff took, as its prefill side measures them, ms; 0 for what it did not come to."""

    grant_ms: float = 0.0  # from Open to Grant
    send_ms: float = 0.0  # in which payloads were ready to leave, or had left and were not seen by the peer yet
    exposed_ms: float = 0.0  # from the end of the prompt's computation


class Closed(Struct, frozen=True, kw_only=True):
    """The handoff is over on the prefill side: drop the sequence's references, and report a failure if it is one."""

    handoff: int
    outcome: Outcome
    reason: str
    retryable: bool
    bytes: int
    digest: int
    ms: float
    digests: dict[Place, int] | None = None
    times: HandoffTimes = HandoffTimes()


class Unpinned(Struct, frozen=True):
    """No frame of this handoff can still be read by the socket: drop its I/O references."""

    handoff: int


class Lost(Struct, frozen=True):
    """The peer of this link is dead: close its socket, then tell every handoff."""

    reason: str


class Joined(Struct, frozen=True):
    """The peer tells which ways are open for this link's payloads."""

    offer: Offer


class Wanted(Struct, frozen=True):
    """A handoff asks for room: queue a landing sequence; answer with granted or refuse."""

    key: HandoffKey
    open: Open
    samples: tuple[int, ...]  # those of the Open's that are not dead already


class Landed(Struct, frozen=True, kw_only=True):
    """All KV is in its blocks and its digest is right: the Commit's branches are ours and may run.

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
    """The handoff is over on the decode side: release its sequence and blocks. `owned`: it had landed."""

    key: HandoffKey
    reason: str
    owned: bool = False


OutboundEvent = Closed | Unpinned
InboundEvent = Wanted | Landed | Dropped
Instruction = Send | Land | Lost | Joined | OutboundEvent | InboundEvent
