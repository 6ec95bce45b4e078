"""Describes a process that the launcher runs: its command, and how its readiness is observed."""

import http.client
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from infra.network.tls import trusting_any_server
from infra.process.status import Status, read_status

PROBE_TIMEOUT_S = 1.0
READY_STAGE = "ready"
FAILED_STAGE = "failed"

Watch = Callable[[], Status | None]
"""Returns the state of a start, or None while there is none yet."""


@dataclass(frozen=True)
class Process:
    """A process, which is restarted if it dies after it was ready."""

    name: str
    command: tuple[str, ...]
    watch: Watch
    status_file: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # environment beside the instance's
    beats: bool = False  # whether it touches its status file every second once it is ready
    grace: float = 15.0  # s from SIGTERM to SIGKILL


def watch_status_file(path: Path) -> Watch:
    return lambda: read_status(path)


def answers(url: str, seconds: float = PROBE_TIMEOUT_S) -> bool:
    """Returns whether a server of this host answers a GET of `url` with status 200 in time."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.netloc, timeout=seconds, context=trusting_any_server()
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


def watch_http(url: str) -> Watch:
    """Observes a gateway's HTTP server: ready when `url` answers 200, before that it waits for workers."""
    return lambda: Status(READY_STAGE, 100.0) if answers(url) else Status("waiting for the workers")


def watch_redis(path: Path) -> Watch:
    """Observes a Redis server on a UNIX socket: ready when it answers PING."""

    def watch() -> Status | None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PROBE_TIMEOUT_S)
            try:
                connection.connect(str(path))
                connection.sendall(b"PING\r\n")
                answer = connection.recv(16)
            except OSError:
                return None
        return Status(READY_STAGE, 100.0) if answer.startswith(b"+PONG") else Status("loading")

    return watch


def watch_both(first: Watch, second: Watch) -> Watch:
    """Observes `first` until it is ready, and then `second`."""

    def watch() -> Status | None:
        status = first()
        return second() if status is not None and status.stage == READY_STAGE else status

    return watch
