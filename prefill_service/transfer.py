"""The prefill side of the handoff on the I/O thread: the engine's events to `kvtransfer.outbound`."""

import logging
from collections.abc import Callable
from typing import Any

import zmq
import zmq.asyncio

from core.config import TransferConfig
from core.kvspec import KVSpec
from core.network import Network
from core.records import HandoffCounts, KVLink
from core.store import ServerClock
from kvtransfer.memory import KVMemory
from kvtransfer.moves import Closed, OpenRequest, Unpinned
from kvtransfer.outbound import Outbound
from worker.events import AbortHandoff, CommitHandoff, LayerWritten, OpenHandoff

log = logging.getLogger("baton.prefill")


class PrefillTransfer:
    """See `worker.io_thread.Transfer`."""

    handoff_address = ""

    def __init__(
        self,
        config: TransferConfig,
        epoch: str,
        spec: KVSpec,
        memory: KVMemory,
        clock: ServerClock,
        network: Network,
        tell_engine: Callable[[Any], None],
    ) -> None:
        self._outbound = Outbound(config, epoch, spec, memory, network, tell_engine)
        self._clock = clock
        self._tell_engine = tell_engine

    def handle(self, event: Any) -> bool:
        """An event from the engine thread; False if it is not about handoffs."""
        match event:
            case OpenHandoff():
                self._open(event)
            case LayerWritten(group=group, layer=layer, handoffs=handoffs):
                for handoff, upto in handoffs:
                    self._outbound.layer_ready(handoff, group, layer, upto)
            case CommitHandoff(handoff=handoff, first=first, computed_at=computed_at):
                age = max(0.0, self._clock.now() - computed_at)
                fields = (first.index, first.branches, first.sampling, first.limits, first.stages)
                self._outbound.commit(handoff, *fields, age)
            case AbortHandoff(handoff=handoff, reason=reason):
                self._outbound.abort(handoff, reason)
            case _:
                return False
        return True

    def _open(self, event: OpenHandoff) -> None:
        job = event.job
        request = OpenRequest(
            request=job.request,
            samples=event.samples,
            attempt=job.attempt,
            gateway=job.sender,
            token_ids=job.token_ids,
            prompt_tokens=job.prompt_tokens,
            remaining_ms=self._clock.remaining_ms(job.deadline),
            salt=job.salt,
            priority=job.priority,
        )
        try:
            self._outbound.open(event.handoff, job.decode_address, job.decode_epoch, request, event.blocks)
        except zmq.ZMQError as error:  # an address that nobody can connect to
            log.warning("decode worker %s at %r: %s", job.decode_epoch, job.decode_address, error)
            failed = Closed(
                handoff=event.handoff, outcome="failed", reason="bad_address", retryable=True, bytes=0, digest=0, ms=0.0
            )
            self._outbound.tally.given_up(failed.reason)
            self._tell_engine(failed)
            self._tell_engine(Unpinned(event.handoff))

    def cancel(self, request: str, sample: int, attempt: int) -> None:
        """The engine thread aborts the handoffs of what it kills."""

    def knows(self, request: str, sample: int, attempt: int) -> bool:
        """What leaves here is in the ledger."""
        return False

    def drain(self) -> None:
        """Opens nothing by itself."""

    def counts(self) -> HandoffCounts:
        """What became of the handoffs so far, and the frames that were dropped."""
        return self._outbound.counts()

    def links(self) -> list[KVLink]:
        """How KV passes to each decode worker."""
        return self._outbound.links()

    async def run(self) -> None:
        """Raises what a task of it dies of."""
        await self._outbound.broken

    async def close(self) -> None:
        """Closes its sockets."""
        await self._outbound.close()
