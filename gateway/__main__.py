"""Runs the gateway, the HTTP front of Baton: `python -m gateway`."""

import asyncio
import contextlib
import logging
import socket
import sys

import uvloop
from msgspec import structs

from contracts.errors import BatonError
from gateway.heap import keep_large_buffers_apart, settle_heap
from gateway.process_group import BAD_INPUT_STATUS, run_process_group
from gateway.service import Gateway
from gateway.web.server import HTTPServer
from infra.cli import parse_or_exit
from infra.config.gateway import GatewayConfig
from infra.network.listening import listen, url_of
from infra.network.tls import Certificate, certificate
from infra.process.descriptors import raise_limit
from infra.process.ending import end
from infra.process.log_lines import log_to_stderr
from infra.process.status import StatusFile
from infra.process.tasks import child

RESERVED_DESCRIPTORS = 512  # kept free for workers, Redis and other files
THREAD_SWITCH_S = 0.0005  # s after which a thread yields Python's lock to the event loop; 5 ms by default
log = logging.getLogger("baton.gateway")


async def serve(
    config: GatewayConfig, listener: socket.socket, status: StatusFile, tls: Certificate | None = None
) -> None:
    """Serves until a signal comes. Raises `BatonError` if the start fails."""
    gateway = Gateway(config, url_of(listener, tls is not None), status)
    server = HTTPServer(gateway, tls)
    started = asyncio.Event()
    serving = child(_serve(server, listener, started if config.share_port else None))
    running = child(_run(gateway, started))
    try:
        await asyncio.wait({serving, running}, return_when=asyncio.FIRST_COMPLETED)
        server.stop()
        if running.done():
            if not started.is_set():
                await end([serving])
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            running.result()  # raises its error
        serving.result()
    finally:
        await end([running])
        with contextlib.suppress(asyncio.CancelledError, BatonError):
            await running
        await gateway.close()


async def _serve(server: HTTPServer, listener: socket.socket, after: asyncio.Event | None) -> None:
    """Serves during the start, so that its progress can be queried; with a shared port, only after `after` is set."""
    if after is not None:
        await after.wait()
    await server.serve([listener])


async def _run(gateway: Gateway, started: asyncio.Event) -> None:
    await gateway.start()
    settle_heap()
    started.set()
    await gateway.watch()


def _affordable(config: GatewayConfig, descriptors: int) -> GatewayConfig:
    most = max(1, descriptors - min(RESERVED_DESCRIPTORS, descriptors // 4))
    if config.max_connections <= most:
        return config
    log.warning(
        "--max-connections: %d: this process may open %d files (ulimit -n), so there are at most %d connections",
        config.max_connections,
        descriptors,
        most,
    )
    return structs.replace(config, max_connections=most)


def _several(config: GatewayConfig) -> int:
    try:
        return run_process_group(config, sys.argv[1:])
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT_STATUS


def main() -> int:
    """Returns exit status 0 after a signal, 2 for an invalid configuration, which is logged."""
    config = parse_or_exit(GatewayConfig, "python -m gateway")
    log_to_stderr(config.log_level, config.log_format, "gateway")
    if config.gateways > 1:
        return _several(config)
    status = StatusFile(config.status_file)
    status.report("starting")
    config = _affordable(config, raise_limit())
    keep_large_buffers_apart()
    sys.setswitchinterval(THREAD_SWITCH_S)
    try:
        tls = certificate(config.tls_cert, config.tls_key)
        listener = listen(config.host, config.port, shared=bool(config.share_port))
        uvloop.run(serve(config, listener, status, tls))
    except BatonError as error:
        status.failed(str(error))
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT_STATUS
    return 0


if __name__ == "__main__":
    sys.exit(main())
