"""Holds a worker's connections to gateways and the gateway's end of one, over real sockets and without an engine."""

import asyncio
from collections.abc import Callable
from typing import Any

import zmq.asyncio

from contracts.ids import AttemptKey
from contracts.messages.gateway import FromWorker, Hello, Piece, ToWorker, Welcome, decode_from_worker
from contracts.messages.wire import encode
from infra.config.engine import EngineConfig
from infra.config.worker import WorkerConfig
from infra.network.bind_address import LOOPBACK_ADDRESS
from infra.network.gatekeeper import Gatekeeper
from infra.network.sockets import token_dealer, token_router
from infra.process.ending import end
from infra.redis.records import KVLink, UnreachedPeer
from infra.redis.store import ServerClock
from infra.redis.worker_load import HandoffCounts
from kvtransfer.events import CancelAttempt
from tests.network import KEYS
from tests.waiting import DEADLINE_S
from worker.engine_status import EngineStatus
from worker.gateways.connections import GatewayConnections
from worker.host.busy_page import BusyPage
from worker.life import Life
from worker.mailbox import Inbox, Outbox

WORKER_EPOCH, GATEWAY_EPOCH = "worker", "gateway"


class Landings:
    """Stands for a transfer: knows the attempts in `landing`, and writes down which were cancelled."""

    handoff_address = ""

    def __init__(self) -> None:
        self.landing: set[AttemptKey] = set()
        self.cancelled: list[AttemptKey] = []

    def handle(self, event: Any) -> None:
        assert isinstance(event, CancelAttempt)
        self.cancelled.append(event.key)

    def knows(self, key: AttemptKey) -> bool:
        return key in self.landing

    def drain(self) -> None: ...

    def counts(self) -> HandoffCounts:
        return HandoffCounts()

    def links(self) -> list[KVLink]:
        return []

    def unreached(self) -> tuple[UnreachedPeer, ...]:
        return ()

    async def run(self) -> None: ...

    async def close(self) -> None: ...


def life(silence: float, jobs_ahead: int = 1024) -> Life:
    config = WorkerConfig(engine=EngineConfig(model="m"), gateway_silence=max(silence, 1e-9), jobs_ahead=jobs_ahead)
    busy = BusyPage("", 1, lambda threads: None)
    return Life(config, WORKER_EPOCH, ServerClock(), EngineStatus(), Inbox(1000), Outbox(1000), busy)


class Setting:
    """Holds a worker's connections, and a gateway's end of one."""

    def __init__(self, silence: float, jobs_ahead: int = 1024) -> None:
        self.context = zmq.asyncio.Context()
        self.life = life(silence, jobs_ahead)
        self.transfer = Landings()
        self.gatekeeper = Gatekeeper(self.context, KEYS)
        self._socket, self.endpoint = token_router(self.context, LOOPBACK_ADDRESS, KEYS)
        self.connections = GatewayConnections(self.life, self._socket, self.transfer)
        self.take_piece: Callable[[Piece], None] = lambda piece: None
        self.ledger = self.connections.ledger
        self.dealer = token_dealer(self.context, self.endpoint, KEYS)
        self._tasks = [
            asyncio.create_task(work)
            for work in (self.connections.run(lambda piece: self.take_piece(piece)), self.connections.send())
        ]

    @property
    def told(self) -> list[Any]:
        """Takes the events that were posted to the engine thread since the last look."""
        return self.life.inbox.take(0)

    async def send(self, message: ToWorker | bytes) -> None:
        data = message if isinstance(message, bytes) else encode(message)
        await asyncio.wait_for(self.dealer.send(data), DEADLINE_S)

    async def receive(self) -> FromWorker:
        return decode_from_worker(await asyncio.wait_for(self.dealer.recv(), DEADLINE_S))

    async def hello(self) -> None:
        await self.send(Hello(sender=GATEWAY_EPOCH, receiver=WORKER_EPOCH))
        assert isinstance(await self.receive(), Welcome)

    async def close(self) -> None:
        await end(self._tasks)
        await self.gatekeeper.close()
        self._socket.close(0)
        self.dealer.close(0)
        self.context.term()
