"""Runs the deployment's own Redis on a node: a Valkey server with a password and append-only files.

After a restart on its node it has its data, up to the last second. No other node has the files, so it stays there.
"""

import socket
from pathlib import Path

from infra.network.bind_address import bracketed
from infra.network.listening import listen
from infra.process.status import Status
from launcher.host.process import PROBE_TIMEOUT_S, READY_STAGE, Process, Watch
from launcher.host.redis_server import server_binary
from launcher.on_ray.order import RedisServer

REDIS_CONF = """\
bind {address}
port {port}
requirepass {password}
dir {directory}
daemonize no
save ""
appendonly yes
appendfsync everysec
maxmemory {max_memory}
maxmemory-policy noeviction
"""


def redis_url(server: RedisServer) -> str:
    return f"redis://:{server.password}@{bracketed(server.address)}:{server.port}"


def free_port(address: str) -> int:
    """Returns a free port of this node. Raises `ConfigError`."""
    with listen(address, 0) as listener:
        port: int = listener.getsockname()[1]
        return port


def redis_process(server: RedisServer, run: Path, max_memory: int) -> Process:
    """Makes the server's process on this node. Raises `ConfigError` if no server is installed."""
    directory = Path(server.directory) if server.directory else run.parent / "redis-data"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = run / "redis.conf"
    config.touch(mode=0o600)
    config.write_text(
        REDIS_CONF.format(
            address=server.address,
            port=server.port,
            password=server.password,
            directory=directory,
            max_memory=max_memory,
        )
    )
    return Process("redis", (str(server_binary()), str(config)), _watch(server))


def _watch(server: RedisServer) -> Watch:
    def watch() -> Status | None:
        try:
            with socket.create_connection((server.address, server.port), PROBE_TIMEOUT_S) as connection:
                connection.settimeout(PROBE_TIMEOUT_S)
                connection.sendall(f"AUTH {server.password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2 and (data := connection.recv(256)):
                    answer += data
        except OSError:
            return None
        address = f"{bracketed(server.address)}:{server.port}"
        return Status(READY_STAGE, 100.0, address) if b"+PONG" in answer else Status("loading")

    return watch
