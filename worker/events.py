"""Defines what the two threads of a worker tell each other: data that refers to nothing the other thread owns.

The handoff's own events (`kvtransfer.events`) pass between them as they are.
"""

from msgspec import Struct

from contracts.ids import AttemptKey
from contracts.messages.gateway import Emitted
from contracts.messages.job import AnyJob

# to the engine thread -----------------------------------------------------------------------------------------------


class Submit(Struct, frozen=True):
    """A job was taken from the stream; the samples it names are new here."""

    job: AnyJob


class Kill(Struct, frozen=True):
    """An attempt is dead, by a cancel, a higher attempt or a lost gateway: it ends, and nothing of it is reported."""

    key: AttemptKey
    reason: str  # for people


# to the I/O thread --------------------------------------------------------------------------------------------------


class Begin(Struct, frozen=True):
    """A sequence has landed and is this worker's now: the gateway gets its tokens so far, and more will follow."""

    gateway: str  # its epoch
    deadline: float  # Redis server time, s
    emitted: Emitted  # what the prefill worker has emitted of this attempt


class Emit(Struct, frozen=True):
    """A step has given these tokens to their sequences."""

    emitted: list[Emitted]


class AttemptFailure(Struct, frozen=True):
    """Says why an attempt fails: a stable word, a sentence for people, and whether another attempt may do better."""

    reason: str
    message: str = ""
    retryable: bool = False


class Fail(Struct, frozen=True):
    """An attempt has failed; no more tokens of it will come."""

    key: AttemptKey
    failure: AttemptFailure


class Phase(Struct, frozen=True):
    """A sequence has entered another phase, which the gateway learns if it asks."""

    key: AttemptKey
    state: str  # as `Alive` says it


class KeysChanged(Struct, frozen=True):
    """Full blocks' KV is here from now on, or is not here any more: short keys, joined."""

    kept: bytes
    lost: bytes


ToGateway = Begin | Emit | Fail | Phase | KeysChanged
"""These events concern the gateways; `GatewayConnections` takes them."""
