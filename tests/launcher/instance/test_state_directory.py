"""Logs of earlier starts are kept within bounds, and that of a running instance in any case."""

from pathlib import Path

import pytest

from contracts.errors import ConfigError
from launcher.instance.log_file import LogFile
from launcher.instance.state_directory import MAX_OLD_LOGS, new_log


def quiet(sentence: str) -> None:
    raise AssertionError(sentence)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "state" / "baton" / "logs"
    folder.mkdir(parents=True)
    return folder


def later_starts(logs: Path) -> None:
    for number in range(MAX_OLD_LOGS + 5):
        (logs / f"29990101-0000{number:02d}-1.log").touch()
        (logs / f"29990101-0000{number:02d}-1.log.1").touch()


def test_only_the_newest_logs_are_kept(logs: Path) -> None:
    later_starts(logs)
    with new_log(1 << 20, 2, quiet) as newest:
        assert newest.path.exists()
        left = sorted(path.name for path in logs.iterdir() if path != newest.path)
    names = [f"29990101-0000{number:02d}-1.log" for number in range(6, MAX_OLD_LOGS + 5)]
    assert left == sorted([*names, *(f"{name}.1" for name in names)])


def test_the_log_of_a_running_instance_stays_however_many_start_later(logs: Path) -> None:
    with LogFile(logs / "20000101-000000-1.log", 1 << 20, 2, quiet) as ours:
        ours.write(b"before\n")
        later_starts(logs)
        with new_log(1 << 20, 2, quiet):
            ours.write(b"behind\n")
            assert ours.path.read_text() == "before\nbehind\n"
    with new_log(1 << 20, 2, quiet):
        assert not ours.path.exists(), "it has ended"


def test_a_log_of_several_files_is_held_by_the_one_that_is_written(logs: Path) -> None:
    with LogFile(logs / "20000101-000000-1.log", 1 << 16, 2, quiet) as ours:
        for _ in range(3):
            ours.write(b"x" * (1 << 15) + b"\n")
        later_starts(logs)
        with new_log(1 << 20, 2, quiet):
            assert ours.path.exists() and Path(f"{ours.path}.1").exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError) as raised:
        new_log(1 << 20, 2, quiet)
    assert str(raised.value) == (
        f"XDG_STATE_HOME: '{tmp_path}/file': no log can be made in {tmp_path}/file/baton/logs: Not a directory;"
        " XDG_STATE_HOME names another place"
    )
