"""Defines a role's side of the handoff, as the I/O thread drives it."""

from collections.abc import Callable
from typing import Any, Protocol

from contracts.ids import AttemptKey
from infra.network.addresses import Network
from infra.redis.records import HandoffCounts, KVLink, UnreachedPeer


class Transfer(Protocol):
    """Moves KV to or from workers of the other role: `PrefillTransfer`, `DecodeTransfer`."""

    handoff_address: str
    """The endpoint to which others connect to hand KV off; empty where nobody does."""

    def handle(self, event: Any) -> None:
        """Takes an event of `kvtransfer.events` from the engine thread, or a `CancelAttempt`."""

    def knows(self, key: AttemptKey) -> bool:
        """Tells whether a handoff of this attempt waits for room, lands or has landed here."""

    def drain(self) -> None:
        """Refuses new handoffs from now on."""

    def counts(self) -> HandoffCounts:
        """Sums up what became of the handoffs so far, and the frames that were dropped."""

    def links(self) -> list[KVLink]:
        """Lists how KV passes, for each worker of the other role that there is a link with."""

    def unreached(self) -> tuple[UnreachedPeer, ...]:
        """Lists the workers of the other role that cannot be connected to."""

    async def run(self) -> None:
        """Waits for ever, while its tasks move bytes and messages. Raises what one of them dies of."""

    async def close(self) -> None:
        """Closes its sockets."""


MakeTransfer = Callable[[Network, Callable[[Any], None]], Transfer]
"""Makes a transfer of the I/O thread's network and of the function that passes events to the engine thread."""
