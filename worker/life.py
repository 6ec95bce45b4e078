"""The shared state of both threads of one life of a worker."""

from dataclasses import dataclass, field
from typing import Any

from infra.config.worker import WorkerConfig
from infra.network.bind_address import LOOPBACK_ADDRESS, BindAddress
from infra.redis.store import ServerClock
from worker.adapters import Adapters
from worker.engine_status import EngineStatus
from worker.host.busy_page import BusyPage
from worker.mailbox import Inbox, Outbox


@dataclass(frozen=True, slots=True)
class Life:
    config: WorkerConfig
    epoch: str  # names this life in every message
    clock: ServerClock  # deadlines are in its time
    status: EngineStatus  # written by the engine thread, read by the I/O thread
    inbox: Inbox[Any]  # to the engine thread
    outbox: Outbox[Any]  # to the I/O thread
    busy: BusyPage  # shared with the host's other workers
    adapters: Adapters = field(default_factory=Adapters)
    bind: BindAddress = LOOPBACK_ADDRESS  # of its listening sockets
