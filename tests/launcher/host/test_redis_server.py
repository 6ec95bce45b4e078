"""The embedded server: real, reachable by its URL only, and gone without a trace."""

import os
import stat
from pathlib import Path

import pytest
import redis

from contracts.errors import ConfigError
from launcher.host.redis_server import redis_service, server_binary
from launcher.host.signals import Signals
from launcher.host.supervisor import Supervisor
from launcher.instance.log_file import LogFile
from launcher.instance.run_directory import run_directory
from launcher.stages import StageDisplay
from tests.waiting import alive, children


def test_starts_serves_and_leaves_nothing(own_directories: Path, tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log", 1 << 20, 2, lambda sentence: None)
    with Signals().installed() as signals, run_directory() as run:
        service, url = redis_service(run, 96 << 20)
        before = set(children(os.getpid()))  # of other tests, still running
        supervisor = Supervisor(run, os.environ, log, StageDisplay(), signals, 0.0)
        try:
            supervisor.start([service])
            assert stat.S_IMODE(run.stat().st_mode) == 0o700
            with redis.Redis.from_url(url) as client:
                assert client.set("key", "value")
                assert client.get("key") == b"value"
                assert client.config_get("port") == {"port": "0"}
                assert client.config_get("save") == {"save": ""}
                assert client.config_get("maxmemory") == {"maxmemory": f"{96 << 20}"}
            started = set(children(os.getpid())) - before
            assert started
        finally:
            supervisor.stop([["redis"]])
    assert not [pid for pid in started if alive(pid)]
    assert list(own_directories.iterdir()) == []


def test_a_server_from_the_path_stands_in_for_a_missing_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "redis-server"
    program.touch(mode=0o755)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert server_binary() == program
    program.unlink()
    with pytest.raises(ConfigError, match="no valkey-server or redis-server on the PATH"):
        server_binary()
