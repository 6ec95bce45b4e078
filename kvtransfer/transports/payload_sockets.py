"""Binds the sockets for a decode worker's payloads: TCP for other hosts, Unix sockets for this host."""

import logging
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
from kvtransfer.transports.shm.ring_socket import RINGS_SUPPORTED, RingSocket, TakeRing

DIRECTORY_PREFIX = "baton-kv-"
SOCKET_NAME = "payloads"
RINGS_NAME = "rings"  # the socket that takes rings of shared memory
MIN_SWEEP_AGE_S = 60.0  # a younger directory without an answering socket may be in the making
log = logging.getLogger("baton.handoff")


class PayloadSockets:
    """One socket for each allowed transport. The Unix sockets' directory is closed to other users."""

    def __init__(self, config: TransferConfig, network: Network, take_ring: TakeRing) -> None:
        """Binds them; `take_ring` gets each ring that arrives.

        Raises `ConfigError` if a port, or an explicitly configured Unix socket or its directory, cannot be used.
        """
        self.sockets: dict[Transport, zmq.asyncio.Socket] = {}
        self.port = 0  # of the TCP socket, if any
        self.ipc = ""  # endpoint of the Unix socket for payloads, if any
        self.shm = ""  # path of the Unix socket for rings and writers, if any
        self.rings: RingSocket | None = None
        self.transports = transports(config)
        self._directory: Path | None = None
        try:
            if "tcp" in self.transports:
                self.sockets["tcp"], endpoint = payload_router(network.context, network.bind)
                self.port = int(endpoint.rpartition(":")[2])
                network.gatekeeper.watch(self.sockets["tcp"])
            self._bind_unix(config, network, take_ring)
        except BaseException:
            self.close()
            raise

    def _bind_unix(self, config: TransferConfig, network: Network, take_ring: TakeRing) -> None:
        here = [each for each in self.transports if each == "ipc" or (each in ("pool", "shm") and RINGS_SUPPORTED)]
        if not here:
            if config.kv_transport in ("pool", "shm"):
                why = "this system cannot pass memory between processes"
                raise ConfigError("--kv-transport", config.kv_transport, why)
            return
        base = Path(config.kv_directory or tempfile.gettempdir()).absolute()
        try:
            sweep(base)
            self._directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=base))
            if "ipc" in here:
                self.sockets["ipc"], self.ipc = payload_ipc_router(network.context, self._directory / SOCKET_NAME)
            if "shm" in here or "pool" in here:
                self.rings = RingSocket(self._directory / RINGS_NAME, take_ring)
                self.shm = str(self._directory / RINGS_NAME)
        except (ConfigError, OSError) as error:
            if (bound := self.sockets.pop("ipc", None)) is not None:
                bound.close(0)
            self.ipc = ""
            self._remove()
            why = f"no Unix socket can be made: {error}"
            if config.kv_directory:
                raise ConfigError("--kv-directory", config.kv_directory, why) from None
            if config.kv_transport != "auto":
                raise ConfigError("--kv-transport", config.kv_transport, why) from None
            log.warning("KV comes over tcp from workers of this host too: %s", why)

    def close(self) -> None:
        for each in self.sockets.values():
            each.close(0)
        self._remove()

    def _remove(self) -> None:
        if self.rings is not None:
            self.rings.close()
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
        if mine and not any(_answers(path / name) for name in (SOCKET_NAME, RINGS_NAME)):
            shutil.rmtree(path, ignore_errors=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.settimeout(1.0)
        try:
            visitor.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # too busy to answer, or a socket of datagrams, which is not connected to
            return True
    return True
