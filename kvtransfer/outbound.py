"""The prefill side's driver: one DEALER per life of a decode worker. Runs on the I/O thread's asyncio loop."""

import asyncio
import time
from collections.abc import Callable

from core.config import TransferConfig, Transport
from core.errors import IllegalMove
from core.kvspec import KVSpec
from core.messages import Branch, Limits, Sampling, Stages
from core.network import Network
from core.records import HandoffCounts, KVLink
from core.sockets import dealer
from kvtransfer.departures import Departures
from kvtransfer.joining import Joining
from kvtransfer.memory import KVMemory
from kvtransfer.moves import Closed, FirstTokens, OpenRequest, OutboundEvent
from kvtransfer.outbound_link import OutboundLink
from kvtransfer.sender import UNANSWERED, GiveUp, LayerReady, SenderEvent
from kvtransfer.tally import Tally

SHUNNED = 1024  # peers


class Outbound:
    """Opens handoffs, sends layers as they become ready, and reports `Closed` and then `Unpinned` for each."""

    def __init__(
        self,
        config: TransferConfig,
        epoch: str,
        spec: KVSpec,
        memory: KVMemory,
        network: Network,
        events: Callable[[OutboundEvent], None],
        *,
        trace: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._epoch = epoch
        self._spec = spec
        self._memory = memory
        self._network = network
        self._events = events
        self._trace = trace
        self._clock = clock
        self._links: dict[str, OutboundLink] = {}  # by the peer's epoch
        self._closing: set[OutboundLink] = set()  # lost, but frames may still be read
        self._handoffs: dict[int, OutboundLink] = {}  # until Unpinned
        self._shunned: dict[str, set[Transport]] = {}  # by the peer's epoch: those over which nothing arrived
        self._blocks: dict[int, tuple[str, int]] = {}  # open handoff -> peer's epoch, blocks
        self.handoffs_accepted = 0
        self.bytes_sent = 0
        self.tally = Tally()
        self._past_malformed = 0
        self._past_strays = 0
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Raises what a task of ours has died of; await it beside the I/O thread's other tasks."""

    def open(
        self, handoff: int, address: str, peer_epoch: str, request: OpenRequest, blocks: tuple[list[int], ...]
    ) -> None:
        """Asks the peer for room. `blocks` are the sequence's blocks per group; those of `request.token_ids` leave."""
        if handoff in self._handoffs:
            raise IllegalMove(f"handoff {handoff} is open already")
        link = self._links.get(peer_epoch)
        if link is None:
            link = self._links[peer_epoch] = self._new_link(address, peer_epoch)
        self._handoffs[handoff] = link
        self._blocks[handoff] = (peer_epoch, sum(len(group) for group in blocks))
        link.open(handoff, request, blocks)

    def layer_ready(self, handoff: int, group: int, layer: int, upto_block: int) -> None:
        """Blocks before `upto_block` of this layer are final. Nothing happens if the handoff is over."""
        self._handle(handoff, LayerReady(group, layer, upto_block))

    def commit(
        self,
        handoff: int,
        index: int,
        branches: list[Branch],
        sampling: Sampling,
        limits: Limits,
        stages: Stages,
        age: float = 0.0,
    ) -> None:
        """Everything is computed, since `age` seconds, and reported; Commit leaves behind the last payload."""
        tokens = FirstTokens(index=index, branches=branches, sampling=sampling, limits=limits, stages=stages, age=age)
        self._handle(handoff, tokens)

    def abort(self, handoff: int, reason: str) -> None:
        """`cancelled`, `superseded`, `deadline`, or `done` (the first token was the last). Closed follows."""
        self._handle(handoff, GiveUp(reason))

    def waiting_blocks(self, peer_epoch: str) -> int:
        """Blocks of this pool held by handoffs that wait for the peer's grant."""
        link = self._links.get(peer_epoch)
        return 0 if link is None else link.side.waiting_blocks()

    def held_blocks(self, peer_epoch: str) -> int:
        """Blocks of this pool held by all handoffs to the peer that are not closed."""
        return sum(count for epoch, count in self._blocks.values() if epoch == peer_epoch)

    @property
    def malformed(self) -> int:
        """Messages that were none."""
        return self._past_malformed + sum(link.malformed for link in self._links.values())

    @property
    def strays(self) -> int:
        """Messages of another epoch, or that came too late or too early."""
        return self._past_strays + sum(link.side.strays for link in self._links.values())

    def counts(self) -> HandoffCounts:
        """What became of the handoffs so far."""
        return self.tally.counts({"malformed": self.malformed, "stray": self.strays})

    def links(self) -> list[KVLink]:
        """The links that have a channel."""
        ways = [(peer, link.side.way()) for peer, link in self._links.items()]
        return [KVLink(peer, way.transport, way.sealed, way.codec) for peer, way in ways if way is not None]

    async def close(self) -> None:
        """Ends every handoff and every socket; returns when no frame can be read any more (bounded)."""
        for link in list(self._links.values()):
            link.lose("closed")
        await asyncio.gather(*(link.pump for link in self._closing), return_exceptions=True)

    def _new_link(self, address: str, peer_epoch: str) -> OutboundLink:
        side = Departures(self._config, self._epoch, peer_epoch, self._spec, self._trace)
        socket = dealer(self._network.context, address, self._network.keys)
        largest = max(self._config.frame, max(group.block_bytes for group in self._spec.groups))
        ends = (self._epoch, peer_epoch)
        without = self._shunned.get(peer_epoch, ())
        joining = Joining(self._config, ends, self._network, largest, socket, address, without)
        link = OutboundLink(side, socket, joining, self._memory, self._clock, self._report, self._forget)
        for task in (link.pump, link.reader):
            task.add_done_callback(self._ended)
        return link

    def _handle(self, handoff: int, event: SenderEvent) -> None:
        link = self._handoffs.get(handoff)
        if link is not None:  # otherwise it is over, and the engine will hear
            link.handle(handoff, event)

    def _report(self, event: OutboundEvent) -> None:
        if isinstance(event, Closed):
            del self._blocks[event.handoff]
            self.bytes_sent += event.bytes
            if event.outcome == "accepted":
                self.handoffs_accepted += 1
                self.tally.accepted(event.times)
            else:
                self.tally.given_up(event.reason)
        else:
            del self._handoffs[event.handoff]
        self._events(event)

    def _forget(self, link: OutboundLink) -> None:
        """The link has closed its socket; the next handoff to that peer gets a new one."""
        self._links = {epoch: known for epoch, known in self._links.items() if known is not link}
        self._past_malformed += link.malformed
        self._past_strays += link.side.strays
        self._closing.add(link)
        if link.lost_for == UNANSWERED and link.channel is not None:
            _, peer = link.side.ends
            if peer not in self._shunned and len(self._shunned) >= SHUNNED:
                del self._shunned[next(iter(self._shunned))]
            self._shunned.setdefault(peer, set()).add(link.channel.transport)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._closing = {link for link in self._closing if not link.pump.done()}
        if not task.cancelled() and (error := task.exception()) is not None and not self.broken.done():
            self.broken.set_exception(error)
