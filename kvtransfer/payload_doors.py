"""The sockets of a decode worker that payloads arrive at: one for other hosts, one for this host."""

import shutil
import tempfile
from pathlib import Path

import zmq.asyncio

from core.config import TransferConfig, Transport
from core.errors import ConfigError
from core.network import Network
from core.sockets import payload_ipc_router, payload_router
from kvtransfer.joining import transports


class PayloadDoors:
    """Those of the transports that may be used. The Unix socket lies in a directory that only this user can enter."""

    def __init__(self, config: TransferConfig, network: Network, host: str) -> None:
        """Raises `ConfigError` if `host` cannot be bound, or a Unix socket is asked for by name and cannot be made."""
        self.sockets: dict[Transport, zmq.asyncio.Socket] = {}
        self.port = 0
        self.ipc = ""
        self.transports = transports(config)
        self._directory: Path | None = None
        if "tcp" in self.transports:
            self.sockets["tcp"], endpoint = payload_router(network.context, host)
            self.port = int(endpoint.rpartition(":")[2])
            network.gatekeeper.watch(self.sockets["tcp"])
        if "ipc" in self.transports:
            self._directory = Path(tempfile.mkdtemp(prefix="baton-kv-"))
            try:
                self.sockets["ipc"], self.ipc = payload_ipc_router(network.context, self._directory / "payloads")
            except ConfigError:
                self.close()
                if config.kv_transport == "ipc":
                    raise

    def close(self) -> None:
        """Leaves nothing behind."""
        for socket in self.sockets.values():
            socket.close(0)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
