"""Binds the sockets for a decode worker's payloads: TCP for other hosts, a Unix socket for this host."""

import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

import zmq.asyncio

from contracts.errors import ConfigError
from contracts.kinds import Transport
from infra.config.transfer import TransferConfig
from infra.network.addresses import Network
from infra.network.sockets import payload_ipc_router, payload_router
from kvtransfer.transports.joining import transports

DIRECTORY_PREFIX = "baton-kv-"
SOCKET_NAME = "payloads"
MIN_SWEEP_AGE_S = 60.0  # a younger directory without an answering socket may be in the making


class PayloadSockets:
    """One socket for each allowed transport. The Unix socket's directory is closed to other users."""

    def __init__(self, config: TransferConfig, network: Network) -> None:
        """Binds them. Raises `ConfigError` if a port, or an explicitly configured Unix socket, cannot be bound."""
        self.sockets: dict[Transport, zmq.asyncio.Socket] = {}
        self.port = 0  # of the TCP socket, if any
        self.ipc = ""  # endpoint of the Unix socket, if any
        self.transports = transports(config)
        self._directory: Path | None = None
        if "tcp" in self.transports:
            self.sockets["tcp"], endpoint = payload_router(network.context, network.bind)
            self.port = int(endpoint.rpartition(":")[2])
            network.gatekeeper.watch(self.sockets["tcp"])
        if "ipc" in self.transports:
            try:
                sweep(Path(tempfile.gettempdir()))
                self._directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX))
                self.sockets["ipc"], self.ipc = payload_ipc_router(network.context, self._directory / SOCKET_NAME)
            except (ConfigError, OSError) as error:  # not fatal with other transports
                self._remove()
                if config.kv_transport == "ipc":
                    raise ConfigError("--kv-transport", "ipc", f"no Unix socket can be made: {error}") from None

    def close(self) -> None:
        for each in self.sockets.values():
            each.close(0)
        self._remove()

    def _remove(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def sweep(base: Path) -> None:
    """Removes this user's directories of killed workers, where no socket answers. Raises `OSError`."""
    for path in base.glob(f"{DIRECTORY_PREFIX}*"):
        try:
            status = path.stat()
            mine = status.st_uid == os.getuid() and status.st_mtime < time.time() - MIN_SWEEP_AGE_S
        except FileNotFoundError:
            continue  # another process swept it first
        if mine and not _answers(path / SOCKET_NAME):
            shutil.rmtree(path, ignore_errors=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.settimeout(1.0)
        try:
            visitor.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # it may be too busy to answer
            return True
    return True
