"""What the launcher's tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.host.signals import Signals
from tests.launcher.host.supervised import Bench
from tests.waiting import alive


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Logs, records and run directories of a test are its own; the value is the folder that run directories go to."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    return temporary


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A supervisor in a directory of its own, whose processes have ended with the test."""
    with Signals().installed() as signals:
        bench = Bench(tmp_path, signals)
        try:
            yield bench
        finally:
            bench.supervisor.stop([])
            bench.log.close()
            assert not [pid for pid in bench.pids() if alive(pid)]
