"""Describes a process that the launcher runs: its command, and how it tells that it is ready and lives."""

import http.client
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from infra.network.tls import own_probe
from infra.process.status import Status, read_status

PROBE_SECONDS = 1.0
READY = "ready"
FAILED = "failed"

Watch = Callable[[], Status | None]
"""Tells how far a start is; None while the process says nothing yet."""


@dataclass(frozen=True)
class Process:
    """Describes one process. If it dies after it was ready, it is started again."""

    name: str
    command: tuple[str, ...]
    watch: Watch
    status_file: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # what its environment has beside the instance's
    beats: bool = False  # once it is ready, it renews its status file's time every second
    grace: float = 15.0  # s from SIGTERM to SIGKILL


def watch_status_file(path: Path) -> Watch:
    """Watches the status file that a service writes."""
    return lambda: read_status(path)


def answers(url: str, seconds: float = PROBE_SECONDS) -> bool:
    """Tells whether a server of this host answers a GET of `url` with status 200, in time."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.netloc, timeout=seconds, context=own_probe()
        )
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=seconds)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def watch_http(url: str, waiting: str) -> Watch:
    """Watches an HTTP server: ready when `url` answers 200; until then the stage is called `waiting`."""
    return lambda: Status(READY, 100.0) if answers(url) else Status(waiting)


def watch_redis(path: Path) -> Watch:
    """Watches a Redis server on a UNIX socket: ready when it answers PING."""

    def watch() -> Status | None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PROBE_SECONDS)
            try:
                connection.connect(str(path))
                connection.sendall(b"PING\r\n")
                answer = connection.recv(16)
            except OSError:
                return None
        return Status(READY, 100.0) if answer.startswith(b"+PONG") else Status("loading")

    return watch


def watch_both(first: Watch, second: Watch) -> Watch:
    """Watches two things: ready when `first` is and then `second` is."""

    def watch() -> Status | None:
        status = first()
        return second() if status is not None and status.stage == READY else status

    return watch
