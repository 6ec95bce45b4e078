"""A log is bounded, and loses lines where its disk is full; the service whose lines they are goes on."""

import os
import sys
from pathlib import Path

import pytest

from launcher.host.child import Child
from launcher.host.process import Process
from launcher.instance.log_file import WRITE_RETRY_S, InheritedFile, LogFile, LossyLog
from tests.full_disk import room
from tests.waiting import wait_until

LINE = b"x" * 99 + b"\n"
MAX_LOG_BYTES = 150_000  # bytes


def contents(log: LogFile) -> list[bytes]:
    """What the files of a log have, the oldest first."""
    older = sorted(log.path.parent.glob(f"{log.path.name}.*"), reverse=True)
    return [path.read_bytes() for path in (*older, log.path)]


@pytest.fixture
def said() -> list[str]:
    return []


def test_files_are_bounded_and_the_oldest_lines_go(tmp_path: Path, said: list[str]) -> None:
    with LogFile(tmp_path / "log", 1000, 3, said.append) as log:
        for number in range(100):
            log.write(b"%03d %s" % (number, LINE[4:]))
        files = contents(log)
        assert [len(each) for each in files] == [1000, 1000, 1000]
        assert b"".join(files) == b"".join(b"%03d %s" % (number, LINE[4:]) for number in range(70, 100))
        assert len(list(tmp_path.glob("log*"))) == 3 and said == []


def test_one_file_begins_anew(tmp_path: Path, said: list[str]) -> None:
    with LogFile(tmp_path / "log", 1000, 1, said.append) as log:
        for _ in range(12):
            log.write(LINE)
        assert contents(log) == [2 * LINE]


def test_more_lines_than_a_file_has_room_for_stay_together(tmp_path: Path, said: list[str]) -> None:
    with LogFile(tmp_path / "log", 1000, 2, said.append) as log:
        log.write(LINE)
        log.write(20 * LINE)
        assert contents(log) == [LINE, 20 * LINE]


def test_a_log_that_somebody_has_removed_is_made_anew(tmp_path: Path, said: list[str]) -> None:
    with LogFile(tmp_path / "log", 1000, 2, said.append) as log:
        log.path.unlink()
        for _ in range(11):
            log.write(LINE)
        assert log.path.read_bytes() == LINE and said == []


def test_where_no_file_can_be_made_the_files_stay(tmp_path: Path, said: list[str]) -> None:
    with LogFile(tmp_path / "log", 1000, 3, said.append) as log:
        for _ in range(10):
            log.write(LINE)
        (tmp_path / "log.new").mkdir()  # in the way
        log.write(LINE)
        assert log.path.read_bytes() == 10 * LINE and len(said) == 1 and "Is a directory" in said[0]


def test_lines_are_lost_while_the_disk_is_full_and_their_number_is_told(tmp_path: Path, said: list[str]) -> None:
    now = 0.0
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    log = LossyLog(InheritedFile(descriptor, "of a test"), said.append, lambda: now)
    with room(250):
        log.write(4 * LINE)  # two and a half are written
        assert path.read_bytes() == (4 * LINE)[:250]
        assert said == ["the log of a test cannot be written (File too large): its lines are lost until it can"]
        now += WRITE_RETRY_S
        log.write(LINE)
        assert len(said) == 1, "it is said once"
    log.write(3 * LINE)
    assert path.stat().st_size == 250, "it is not tried again at every line"
    now += WRITE_RETRY_S
    log.write(LINE)
    assert path.read_bytes() == (
        2 * LINE + LINE[:50] + b"\nlauncher  | 6 lines were lost: the log could not be written\n" + LINE
    )
    assert said[1:] == ["the log of a test is written again; 6 lines were lost"]
    log.write(LINE)
    assert len(said) == 2
    os.close(descriptor)


NOISY = """
import sys
for number in range(4000):
    print("x" * 99, flush=number % 500 == 0)
print("error: the last of {} lines".format(number + 1))
"""


@pytest.mark.parametrize("full", ["the device", "the disk"])
def test_a_child_goes_on_while_its_log_cannot_be_written(full: str, tmp_path: Path, said: list[str]) -> None:
    """All that it writes is read, and how it ended is known; nothing is raised into the launcher's loop."""
    service = Process("decode-0", (sys.executable, "-I", "-S", "-c", NOISY), lambda: None)
    path = Path("/dev/full") if full == "the device" else tmp_path / "log"
    with room(MAX_LOG_BYTES), LogFile(path, 1 << 20, 2, said.append) as log:
        child = Child(service, os.environ, tmp_path, log)

        def ended() -> bool:
            return not child.pump()

        wait_until(ended, "the end of its output")
        wait_until(lambda: child.exit_status() is not None, "its end")
        child.close()
        assert child.exit_status() == 0 and child.why() == "the last of 4000 lines"
        assert len(said) == 1 and "its lines are lost until it can" in said[0]
        if full == "the disk":
            assert log.path.stat().st_size == MAX_LOG_BYTES
