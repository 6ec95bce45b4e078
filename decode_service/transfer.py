"""The decode side of the handoff on the I/O thread: the engine's events to `kvtransfer.inbound`."""

from collections.abc import Callable
from typing import Any

from core.config import WorkerConfig
from core.kvspec import KVSpec
from core.network import Network
from core.records import HandoffCounts, KVLink
from kvtransfer.inbound import Inbound
from kvtransfer.memory import KVMemory
from worker.events import HandoffOver, RoomGranted, RoomRefused


class DecodeTransfer:
    """See `worker.io_thread.Transfer`."""

    def __init__(
        self,
        config: WorkerConfig,
        epoch: str,
        spec: KVSpec,
        memory: KVMemory,
        network: Network,
        tell_engine: Callable[[Any], None],
    ) -> None:
        self._inbound = Inbound(config.transfer, epoch, spec, memory, network, config.host, tell_engine)
        self.handoff_address = self._inbound.address

    def handle(self, event: Any) -> bool:
        """An event from the engine thread; False if it is not about handoffs."""
        match event:
            case RoomGranted(key=key, blocks=blocks, held=held):
                self._inbound.granted(key, blocks, held)
            case RoomRefused(key=key, reason=reason, message=message, retryable=retryable):
                self._inbound.refuse(key, reason, message, retryable)
            case HandoffOver(key=key):
                self._inbound.finished(key)
            case _:
                return False
        return True

    def cancel(self, request: str, sample: int, attempt: int) -> None:
        """Attempts up to this one are dead: what still lands stops landing now."""
        self._inbound.cancel(request, sample, attempt)

    def knows(self, request: str, sample: int, attempt: int) -> bool:
        """Whether this attempt is on its way here, or has just landed."""
        return self._inbound.knows(request, sample, attempt)

    def drain(self) -> None:
        """Takes no new handoffs."""
        self._inbound.drain()

    def counts(self) -> HandoffCounts:
        """What became of the handoffs so far, and the frames that were dropped."""
        return self._inbound.counts()

    def links(self) -> list[KVLink]:
        """How KV passes from each prefill worker."""
        return self._inbound.links()

    async def run(self) -> None:
        """Raises what a task of it dies of."""
        await self._inbound.broken

    async def close(self) -> None:
        """Closes its sockets."""
        await self._inbound.close()
