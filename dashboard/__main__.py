"""Serves the page in this process until SIGTERM (`python -m dashboard`).

The socket is bound here, not by Streamlit, so that a port in use is one sentence and port 0 works.
"""

import signal
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from streamlit.starlette import App

from contracts.errors import ConfigError, StoreUnavailable
from dashboard.operators import OperatorsOnly
from infra.cli import parse_or_exit
from infra.config.dashboard import DashboardConfig
from infra.keys.key_ring import KeyRing
from infra.network.listening import listen, url_of
from infra.network.tls import certificate
from infra.process.status import StatusFile
from infra.redis.clients import connect_blocking

PAGE_SCRIPT = Path(__file__).with_name("app.py")
SHUTDOWN_GRACE_S = 1  # for open pages


def main() -> int:
    """Serves the page. Returns the exit status: 0 after a signal, 2 for an invalid setting."""
    config = parse_or_exit(DashboardConfig, "dashboard")
    status = StatusFile(config.status_file)
    try:
        with suppress(StoreUnavailable):  # a Redis cluster may be started later
            connect_blocking(config.redis).close()  # raises `ConfigError` for an invalid URL
        keys = KeyRing(config.api_keys) if config.api_keys else None
        tls = certificate(config.tls_cert, config.tls_key)
        listener = listen(config.host, config.port)
    except ConfigError as error:
        status.failed(str(error))
        print(f"error: {error}", file=sys.stderr)
        return 2
    with listener:
        address = url_of(listener, tls is not None)
        page: ASGIApp = App(PAGE_SCRIPT)
        serve(
            page if keys is None else OperatorsOnly(page, keys),
            listener,
            tls.context if tls is not None else None,
            lambda: status.ready(address),
        )
    return 0


def serve(page: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None, on_ready: Callable[[], None]) -> None:
    """Serves the page until SIGTERM or SIGINT. `on_ready` is called once, when the page answers."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _already_handled)  # uvicorn repeats the signal after its own clean shutdown
    settings = uvicorn.Config(
        page,
        ssl_context_factory=None if tls is None else lambda *_: tls,
        ws="websockets-sansio",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
    _Server(settings, on_ready).run(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(self, settings: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(settings)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._on_ready()


def _already_handled(number: int, frame: object) -> None:
    """Ignores the signal, so that the process ends with status 0."""


if __name__ == "__main__":
    raise SystemExit(main())
