"""The prefill side's driver, on the I/O thread's asyncio loop: one link per life of a decode worker."""

import asyncio
import logging
import time
from collections.abc import Callable

import zmq

from contracts.errors import IllegalMove
from contracts.ids import AttemptKey
from contracts.kinds import Transport
from contracts.kv.spec import KVSpec
from contracts.messages.gateway import REASON_UNREACHED
from contracts.messages.job import PrefillJob
from infra.config.transfer import TransferConfig
from infra.network.addresses import Network
from infra.network.sockets import dealer
from infra.process.tasks import Tasks
from infra.redis.records import KVLink, UnreachedPeer
from infra.redis.worker_load import HandoffCounts
from kvtransfer.events import CancelAttempt, Closed, FromPrefill, OpenHandoff, ToPrefillEngine, Unpinned
from kvtransfer.memory import KVMemory
from kvtransfer.peer_probes import PeerProbes
from kvtransfer.prefill_link_driver import REASON_NOT_ADMITTED, PrefillLinkDriver
from kvtransfer.protocol.outcomes import Outcomes
from kvtransfer.protocol.prefill_handoff import REASON_UNANSWERED
from kvtransfer.protocol.prefill_link import PrefillLink
from kvtransfer.transports.joining import Joining, start_nixl

MAX_SHUNNED_PEERS = 1024  # peers whose broken transports are remembered
log = logging.getLogger("baton.handoff")


class PrefillTransfer:
    """Passes the engine's events to their links, and reports `Closed` and then `Unpinned` of each handoff."""

    handoff_address = ""  # no worker hands off to a prefill worker

    def __init__(
        self,
        config: TransferConfig,
        epoch: str,
        spec: KVSpec,
        memory: KVMemory,
        network: Network,
        tell_engine: Callable[[ToPrefillEngine], None],
        *,
        trace: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._epoch = epoch
        self._spec = spec
        self._memory = memory
        self._network = network
        self._tell_engine = tell_engine
        self._trace = trace
        self._clock = clock
        self._links: dict[str, PrefillLinkDriver] = {}  # by the peer's epoch
        self._closing: set[PrefillLinkDriver] = set()  # lost, but frames may still be read
        self._handoffs: dict[int, PrefillLinkDriver] = {}  # until Unpinned
        self._shunned: dict[str, set[Transport]] = {}  # transports over which nothing arrived, by the peer's epoch
        self._outcomes = Outcomes()
        self._nixl = start_nixl(config, network)
        me = f"prefill worker {epoch} at {network.bind.advertised}"
        self._reaching = PeerProbes(me, config.silence / 2, config.remember, self._missed, clock)
        self._past_malformed = 0
        self._past_strays = 0
        self._tasks = Tasks("the handoff to decode workers")

    def handle(self, event: FromPrefill) -> None:
        """Takes an event of the engine. It is ignored if its handoff is over: then a `Closed` is on its way.

        Raises `IllegalMove` for an event that the handoff's state does not allow.
        """
        match event:
            case OpenHandoff():
                self._open(event)
            case CancelAttempt():
                pass  # the engine aborts the handoffs of killed attempts
            case _:
                if (link := self._handoffs.get(event.handoff)) is not None:
                    link.handle(event)

    def knows(self, key: AttemptKey) -> bool:
        return False

    def drain(self) -> None:
        """Does nothing: only the engine opens handoffs."""

    def counts(self) -> HandoffCounts:
        links = self._links.values()
        malformed = self._past_malformed + sum(link.malformed for link in links)
        strays = self._past_strays + sum(link.side.strays for link in links)
        return self._outcomes.counts({"malformed": malformed, "stray": strays})

    def links(self) -> list[KVLink]:
        ways = [(peer, link.side.way(), link.rate.bytes_per_second) for peer, link in self._links.items()]
        return [KVLink(peer, way.transport, way.sealed, way.codec, rate) for peer, way, rate in ways if way is not None]

    def unreached(self) -> tuple[UnreachedPeer, ...]:
        return self._reaching.unreached()

    async def run(self) -> None:
        await self._tasks.wait()

    async def close(self) -> None:
        """Ends all handoffs and sockets. Returns, in bounded time, when no frame can be read any more."""
        for link in list(self._links.values()):
            link.lose("closed")
        await self._reaching.close()
        await asyncio.gather(*(link.pump for link in self._closing), return_exceptions=True)
        if self._nixl is not None:
            await self._nixl.close()

    def _open(self, opened: OpenHandoff) -> None:
        if opened.handoff in self._handoffs:
            raise IllegalMove(f"handoff {opened.handoff} is open already")
        job = opened.job
        if self._reaching.misses(job.decode_epoch):
            self._give_up(opened.handoff, REASON_UNREACHED)
            return
        link = self._links.get(job.decode_epoch)
        if link is None:
            try:
                link = self._links[job.decode_epoch] = self._new_link(job)
            except zmq.ZMQError as error:  # an invalid address
                log.warning("decode worker %s at %r: %s", job.decode_epoch, job.decode_address, error)
                self._give_up(opened.handoff, "bad_address")
                return
        self._handoffs[opened.handoff] = link
        link.open(opened)

    def _give_up(self, handoff: int, reason: str) -> None:
        self._outcomes.given_up(reason)
        self._tell_engine(Closed(handoff=handoff, outcome="failed", reason=reason, retryable=True))
        self._tell_engine(Unpinned(handoff))

    def _new_link(self, job: PrefillJob) -> PrefillLinkDriver:
        """Begins a link to the job's decode worker. Raises `ZMQError` for an invalid address."""
        peer, address = job.decode_epoch, job.decode_address
        socket = dealer(self._network.context, address, self._network.keys)
        ends = (self._epoch, peer)
        without = self._shunned.get(peer, ())
        memory = self._memory.devices
        joining = Joining(self._config, ends, self._network, self._spec, socket, address, self._nixl, without, memory)
        side = PrefillLink(self._config, self._epoch, peer, self._spec, self._trace)
        link = PrefillLinkDriver(side, socket, joining, self._memory, self._clock, self, self._tasks)
        self._reaching.check(peer, address, lambda: link.joined)
        link.pump.add_done_callback(self._gone)
        return link

    def report(self, event: ToPrefillEngine) -> None:
        match event:
            case Closed(outcome="accepted"):
                self._outcomes.accepted(event.times)
                if (link := self._handoffs.get(event.handoff)) is not None:
                    link.rate.passed(event.bytes, event.times.send_ms / 1000)
            case Closed():
                self._outcomes.given_up(event.reason)
            case Unpinned():
                del self._handoffs[event.handoff]
        self._tell_engine(event)

    def lost(self, link: PrefillLinkDriver) -> None:
        """Forgets a link whose socket is closed. The next handoff to that peer gets a new link."""
        self._links = {epoch: known for epoch, known in self._links.items() if known is not link}
        self._past_malformed += link.malformed
        self._past_strays += link.side.strays
        self._closing.add(link)
        if link.loss_reason in (REASON_UNANSWERED, REASON_NOT_ADMITTED) and link.channel is not None:
            _, peer = link.side.ends
            if peer not in self._shunned and len(self._shunned) >= MAX_SHUNNED_PEERS:
                del self._shunned[next(iter(self._shunned))]
            self._shunned.setdefault(peer, set()).add(link.channel.transport)

    def joined(self, link: PrefillLinkDriver) -> None:
        if address := link.payload_address:
            self._reaching.check(link.side.ends[1], address, lambda: link.side.window.seen > 0)

    def _missed(self, peer: str) -> None:
        if (link := self._links.get(peer)) is not None:
            link.lose(REASON_UNREACHED)

    def _gone(self, pump: asyncio.Task[None]) -> None:
        self._closing = {link for link in self._closing if link.pump is not pump}
