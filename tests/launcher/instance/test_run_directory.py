"""A run directory lives as long as its instance, and not longer even if the instance is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from launcher.instance.held_file import HeldFile, is_held
from launcher.instance.instances import running
from launcher.instance.run_directory import DIRECTORY_PREFIX, MAX_BASE_BYTES, OWNER_FILE, run_directory, sweep

HOLD = """
import os, signal
from launcher.instance.run_directory import run_directory
from launcher.instance.instances import Instance, Record
with run_directory() as run, Record(Instance("http://127.0.0.1:1", os.getpid(), "m", 1.0, "log"), print):
    print(run, flush=True)
    signal.pause()
"""


def test_is_private_while_it_is_used_and_gone_afterwards(own_directories: Path) -> None:
    with run_directory() as run:
        (run / "socket").touch()
        assert run.parent == own_directories
        assert is_held(run / OWNER_FILE)
    assert list(own_directories.iterdir()) == []


def test_a_killed_instance_is_swept_and_a_living_one_is_not(own_directories: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        run = Path(holder.stdout.readline().strip())
        sweep(own_directories)
        assert run.is_dir()
        assert [instance.pid for instance in running()] == [holder.pid]
        holder.send_signal(signal.SIGKILL)
    assert run.is_dir()
    assert running() == []
    with run_directory():
        assert not run.exists()


def test_a_directory_that_is_just_being_made_is_left_alone(own_directories: Path) -> None:
    young, old = own_directories / f"{DIRECTORY_PREFIX}young", own_directories / f"{DIRECTORY_PREFIX}old"
    for path in (young, old):
        path.mkdir()
    hour_ago = time.time() - 3600
    os.utime(old, (hour_ago, hour_ago))
    sweep(own_directories)
    assert list(own_directories.iterdir()) == [young]


def test_a_long_temporary_directory_leaves_room_for_a_sockets_path(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    code = "from launcher.instance.run_directory import run_directory\nwith run_directory() as run: print(run)"
    environment = {**os.environ, "TMPDIR": str(long)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert len(shown.stdout.strip()) < 90


def test_a_held_file_says_whether_its_writer_lives(tmp_path: Path) -> None:
    path = tmp_path / "owner"
    with HeldFile(path, "content"):
        assert path.read_text() == "content"
        assert is_held(path)
    assert not path.exists()
    assert not is_held(path)


@pytest.mark.parametrize("base", ["missing", "file"])
def test_no_room(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is short, since the path holds it: instead of a long path `/tmp` would be taken."""
    (tmp_path / "file").touch()
    assert len(str(tmp_path / base)) <= MAX_BASE_BYTES
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / base))
    monkeypatch.setenv("TMPDIR", str(tmp_path / base))
    with pytest.raises(ConfigError, match=r"^TMPDIR: '.*': no run directory can be made: "), run_directory():
        pass
