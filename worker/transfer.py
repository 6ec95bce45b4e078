"""The interface of a role's side of the handoff, as the I/O thread uses it."""

from collections.abc import Callable
from typing import Any, Protocol

from contracts.ids import AttemptKey
from infra.network.addresses import Network
from infra.redis.records import KVLink, UnreachedPeer
from infra.redis.worker_load import HandoffCounts


class Transfer(Protocol):
    """Moves KV to or from workers of the other role: `PrefillTransfer`, `DecodeTransfer`."""

    handoff_address: str  # endpoint for incoming handoffs; empty if there is none

    def handle(self, event: Any) -> None:
        """Takes an event of `kvtransfer.events` from the engine thread, or a `CancelAttempt`."""

    def knows(self, key: AttemptKey) -> bool:
        """Whether a handoff of this attempt waits for blocks, lands or has landed here."""

    def drain(self) -> None:
        """Refuses new handoffs from now on."""

    def counts(self) -> HandoffCounts:
        """Returns outcomes of handoffs, and dropped frames."""

    def links(self) -> list[KVLink]:
        """Lists the KV links with workers of the other role."""

    def unreached(self) -> tuple[UnreachedPeer, ...]:
        """Lists unreachable workers of the other role."""

    async def run(self) -> None:
        """Waits for ever. Raises the first error of its tasks."""

    async def close(self) -> None:
        """Closes its sockets."""


MakeTransfer = Callable[[Network, Callable[[Any], None]], Transfer]
"""Makes a transfer from the I/O thread's network and a function that posts events to the engine thread."""
