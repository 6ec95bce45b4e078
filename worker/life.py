"""What one life of a worker is made of, for both of its threads."""

from dataclasses import dataclass
from typing import Any

from core.config import WorkerConfig
from core.store import ServerClock
from worker.busy_page import BusyPage
from worker.engine_status import EngineStatus
from worker.mailbox import Inbox, Outbox


@dataclass(frozen=True, slots=True)
class Life:
    """Holds what the engine thread and the I/O thread share."""

    config: WorkerConfig
    epoch: str
    clock: ServerClock
    status: EngineStatus  # the engine's, for the I/O thread to read
    inbox: Inbox[Any]  # to the engine thread
    outbox: Outbox[Any]  # to the I/O thread
    busy: BusyPage
