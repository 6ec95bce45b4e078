"""A pulse tells who is stopped or silent, from the system and from the status file, in the looker's own time."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from launcher.host.process import Process, watch_status_file
from launcher.host.pulse import Pulse, is_stopped
from tests.busy import busy_on_one_core
from tests.waiting import wait_until


@pytest.fixture
def service(tmp_path: Path) -> Process:
    status = tmp_path / "worker.status"
    status.write_text('{"stage": "ready"}')
    return Process("worker", (), watch_status_file(status), status_file=status, beats=True)


@pytest.fixture
def asleep() -> Iterator[int]:
    """A process that never waits for a processor."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            stat = Path(f"/proc/{child.pid}/stat")
            wait_until(lambda: stat.read_text().startswith(f"{child.pid} (sleep) S"), "its sleep")
            yield child.pid
        finally:
            child.kill()


def test_who_renews_its_file_is_not_silent(service: Process, asleep: int) -> None:
    pulse = Pulse(service, asleep)
    assert service.status_file is not None
    for now in range(5):
        os.utime(service.status_file, (now, now))
        assert pulse.look(now, ready=True) == (0.0, "silent")
    assert [pulse.look(now, ready=True)[0] for now in range(5, 8)] == [1.0, 2.0, 3.0]
    os.utime(service.status_file, (100, 100))
    assert pulse.look(8, ready=True) == (0.0, "silent")


def test_a_start_may_be_silent(service: Process, asleep: int) -> None:
    pulse = Pulse(service, asleep)
    assert [pulse.look(now, ready=False)[0] for now in range(3)] == [0.0] * 3


def test_who_is_stopped_and_goes_on_begins_anew(service: Process) -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            pulse = Pulse(service, child.pid)
            assert pulse.look(0, ready=False)[1] == "silent"
            child.send_signal(signal.SIGSTOP)
            wait_until(lambda: is_stopped(child.pid), "the stop")
            assert [pulse.look(now, ready=False) for now in (1, 2)] == [(0.0, "stopped"), (1.0, "stopped")]
            child.send_signal(signal.SIGCONT)
            wait_until(lambda: not is_stopped(child.pid), "its going on")
            assert pulse.look(3, ready=False) == (0.0, "silent")
        finally:
            child.kill()
    assert not is_stopped(child.pid), "nobody has this number any more"


def test_a_child_that_waits_for_a_processor_is_not_silent(service: Process) -> None:
    """The observer's clock is the real one here, because the kernel counts the child's wait by it."""
    with ExitStack() as stack:
        starved, *_ = (stack.enter_context(busy_on_one_core(nice)) for nice in (19, 0, 0))
        pulse = Pulse(service, starved.pid)
        began = time.monotonic()
        looks = [pulse.look(began, ready=True)]

        def a_second_has_passed() -> bool:
            looks.append(pulse.look(time.monotonic(), ready=True))
            return time.monotonic() - began > 1.0

        wait_until(a_second_has_passed, "a second")
        silent, how = looks[-1]
        assert how == "silent"
        assert silent < 0.5, "most of this second the child was runnable, and did not run"
