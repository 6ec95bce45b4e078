"""Streamlit's ASGI app on a socket that is bound here, so that a port in use is one sentence and port 0 works."""

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
from streamlit.starlette import App

SCRIPT = Path(__file__).with_name("app.py")
GRACE = 1  # s that open pages get at a shutdown


def serve(listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serves the page until SIGTERM or SIGINT. `on_ready` is called once, when the page answers."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _already_handled)  # uvicorn repeats the signal after its own clean shutdown
    settings = uvicorn.Config(
        App(SCRIPT),
        ws="websockets-sansio",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE,
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
    """Returns, so that the process ends with status 0."""
