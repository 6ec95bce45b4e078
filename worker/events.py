"""Events between the two threads of a worker: plain data, without references to the other thread's objects.

Handoff events (`kvtransfer.events`) pass between the threads unchanged.
"""

from msgspec import Struct

from contracts.ids import AttemptKey
from contracts.messages.gateway import Emitted

# to the engine thread, in addition to jobs with new samples -----------------------------------------------------------


class Kill(Struct, frozen=True):
    """An attempt is dead, by a cancel, a higher attempt or a lost gateway. It ends without a report."""

    key: AttemptKey
    reason: str  # for people


# to the I/O thread --------------------------------------------------------------------------------------------------


class Begin(Struct, frozen=True):
    """A landed sequence belongs to this worker: its gateway gets its tokens so far, and more will follow."""

    gateway: str  # epoch
    deadline: float  # Redis server time, s
    emitted: Emitted  # tokens that the prefill worker has emitted


class Emit(Struct, frozen=True):
    """Tokens of a step."""

    emitted: list[Emitted]


class AttemptFailure(Struct, frozen=True):
    """Why an attempt fails: a stable reason, a sentence for people, and whether another attempt may succeed."""

    reason: str
    message: str = ""
    retryable: bool = False


class Fail(Struct, frozen=True):
    """An attempt has failed; it emits no more tokens."""

    key: AttemptKey
    failure: AttemptFailure


class Phase(Struct, frozen=True):
    """A sequence has entered another phase. Its gateway has to ask for it."""

    key: AttemptKey
    state: str  # state of `Alive`


class KeysChanged(Struct, frozen=True):
    """Joined short keys of full blocks whose KV was cached (`kept`) or dropped (`lost`)."""

    kept: bytes
    lost: bytes


ToGateway = Begin | Emit | Fail | Phase | KeysChanged  # events for `GatewayConnections`
