"""The parts of a worker that its role's policy uses: a clock, scheduler, blocks, and a way to the I/O thread."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from contracts.errors import MessageError
from contracts.kv.spec import KVSpec
from engine.blocks.manager import BlockManager
from engine.schedule.scheduler import Scheduler


class PolicyClock(Protocol):
    """Time in s: of the Redis server, in which deadlines are, and of this process."""

    def now(self) -> float:
        """Returns the server's time."""

    def local(self, deadline: float) -> float:
        """Converts a time of the server into this process's monotonic time."""


class HeldDigests(Protocol):
    """The adapters that a worker can use."""

    def has(self, digest: str) -> bool:
        """Returns whether an adapter can be used; an empty digest is the model alone."""


class PolicyParts(NamedTuple):
    """Parts of a worker that its policy uses; none of them touches sockets or tensors."""

    clock: PolicyClock
    tell_io: Callable[[Any], None]  # posts an event to the I/O thread
    adapters: HeldDigests
    waiting_share: float  # share of a prefill worker's pool that may wait for one decode worker
    spec: KVSpec
    vocab_size: int  # exclusive upper bound of token ids
    scheduler: Scheduler
    blocks: BlockManager


def check_tokens(token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises `MessageError` for ids outside the vocabulary, which would fail a whole step."""
    try:
        # An array's maximum takes a third of the time of a list's.
        fit = not token_ids or np.frombuffer(array("I", token_ids), np.uintc).max() < vocab_size
    except OverflowError:
        fit = False  # negative, or beyond 32 bits
    if not fit:
        raise MessageError(f"token ids from {min(token_ids)} to {max(token_ids)}, the vocabulary has {vocab_size}")
