"""Holds what one life of a worker is made of, for both of its threads."""

from dataclasses import dataclass, field
from typing import Any

from infra.config.worker import WorkerConfig
from infra.network.bind_address import LOOPBACK_ADDRESS, BindAddress
from infra.redis.store import ServerClock
from worker.adapters import Adapters
from worker.busy_page import BusyPage
from worker.engine_status import EngineStatus
from worker.mailbox import Inbox, Outbox


@dataclass(frozen=True, slots=True)
class Life:
    """Holds what the engine thread and the I/O thread share."""

    config: WorkerConfig
    epoch: str  # this life's name in every message
    clock: ServerClock  # of the Redis server, in which deadlines are
    status: EngineStatus  # written by the engine thread, read by the I/O thread
    inbox: Inbox[Any]  # to the engine thread
    outbox: Outbox[Any]  # to the I/O thread
    busy: BusyPage  # shared with the host's other workers
    adapters: Adapters = field(default_factory=Adapters)
    reach: BindAddress = LOOPBACK_ADDRESS  # of the sockets that it listens on
