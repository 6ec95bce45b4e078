"""Real processes: what dies, stops or falls silent is started again, and each death is told in its own words."""

import itertools
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.host.pulse import Pulse
from launcher.host.supervisor import StartFailed
from tests.launcher.host.supervised import READY_THEN_SLEEP, Bench
from tests.waiting import alive, wait_until


def test_what_dies_while_others_start_is_started_again(bench: Bench) -> None:
    """A worker that starts waits for a Redis that died meanwhile, and nobody else would start that again."""
    waits = """
import os, signal, time
(redis,) = open("pids").read().split()
os.kill(int(redis), signal.SIGKILL)
while len(open("pids").read().split()) < 2:
    time.sleep(0.01)
"""
    bench.supervisor.start([bench.service("redis")])
    bench.supervisor.start([bench.service("worker", waits + READY_THEN_SLEEP)])
    assert len(bench.pids()) == 3


def test_what_dies_after_it_was_ready_does_not_end_the_start_of_those_it_started_with(bench: Bench) -> None:
    """A gateway was ready first and dies, while a worker still loads."""
    waits = """
import os, signal, time
while not os.path.exists("gateway is ready"):
    time.sleep(0.01)
(gateway,) = open("pids").read().split()
os.kill(int(gateway), signal.SIGKILL)
while len(open("pids").read().split()) < 2:
    time.sleep(0.01)
"""
    mark = bench.directory / "gateway is ready"
    supervisor = bench.supervise(0.0, lambda states: mark.touch() if states[0].stage == "ready" else None)
    supervisor.start([bench.service("gateway"), bench.service("worker", waits + READY_THEN_SLEEP)])
    assert supervisor.ready and len(bench.pids()) == 3
    assert re.search(r"gateway died \(killed by SIGKILL.*\); it is started again in 1 s", bench.shown.getvalue())
    assert "gateway is ready again" in bench.shown.getvalue()


def test_who_lived_long_is_started_again_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.host.supervisor.MIN_LIFE_S", 0.0)
    bench.supervisor.start([bench.service("redis"), bench.service("worker")])
    for pid in bench.pids():
        os.kill(pid, signal.SIGKILL)

    def wait_then_stop() -> None:
        wait_until(lambda: bench.shown.getvalue().count("ready again") == 2, "the second lives")
        os.kill(os.getpid(), signal.SIGINT)

    bench.watch_while(wait_then_stop)
    for name in ("redis", "worker"):
        assert re.search(rf"{name} died \(killed by SIGKILL.*\); it is started again at once", bench.shown.getvalue())


def test_who_dies_again_and_again_is_started_again_ever_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.host.supervised_service.FIRST_RESTART_DELAY_S", 0.5)
    later_lives_end = 'sys.exit(1) if len(open("pids").readlines()) > 1 else signal.pause()'
    bench.supervisor.start([bench.service("worker", READY_THEN_SLEEP.replace("signal.pause()", later_lives_end))])

    def wait_then_stop() -> None:
        os.kill(bench.pids()[0], signal.SIGKILL)
        wait_until(lambda: bench.shown.getvalue().count("it is started again") == 3, "three deaths")
        os.kill(os.getpid(), signal.SIGINT)

    bench.watch_while(wait_then_stop)
    delays = re.findall(r"started again in (\d+) s", bench.shown.getvalue())
    assert delays == ["0", "1", "2"], "0.5 s, doubled by each early death"


def test_a_service_that_cannot_be_started_again_is_tried_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program is away when it is to be started again: that ends neither the launcher nor the other services."""
    monkeypatch.setattr("launcher.host.supervised_service.FIRST_RESTART_DELAY_S", 0.3)
    program = bench.directory / "program"
    program.symlink_to(sys.executable)
    worker = bench.service("worker")
    bench.supervisor.start([bench.service("other")])
    bench.supervisor.start([replace(worker, command=(str(program), *worker.command[1:]))])
    other, dead = bench.pids()

    def kill_and_give_back() -> None:
        program.unlink()
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: "worker cannot be started (No such file" in bench.shown.getvalue(), "the failure")
        program.symlink_to(sys.executable)
        wait_until(lambda: "worker is ready again" in bench.shown.getvalue(), "the next life")
        bench.signals.ask_to_stop()

    bench.watch_while(kill_and_give_back)
    assert len(bench.pids()) == 3 and alive(other)


def test_a_service_that_was_told_to_end_is_no_early_death(bench: Bench) -> None:
    bench.supervisor.start([bench.service("worker")])

    def tell(life: int) -> None:
        os.kill(bench.pids()[life], signal.SIGTERM)
        wait_until(lambda: bench.shown.getvalue().count("ready again") == life + 1, "the next life")

    def tell_twice() -> None:
        tell(0)
        tell(1)
        bench.signals.ask_to_stop()

    bench.watch_while(tell_twice)
    sentence = "worker ended, as it was told to; it is started again at once"
    assert bench.shown.getvalue().count(sentence) == 2 and bench.ends() == ["worker", "worker"]


def test_a_child_that_the_kernel_kills_for_lack_of_memory_is_said_to_be(bench: Bench, memory_group: Path) -> None:
    """The child enters a control group of 32 MiB, and takes more."""
    code = f"""
import os
open({str(memory_group / "cgroup.procs")!r}, "w").write(str(os.getpid()))
taken = [bytes(1 << 20).replace(b"\\0", b"x") for _ in range(1024)]
"""
    with pytest.raises(StartFailed, match=r"big did not start: killed by SIGKILL, and the kernel has killed for lack"):
        bench.supervisor.start([bench.service("big", code)])


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group that may use 32 MiB, of version 1 or 2 of the kernel's interface."""
    root = Path("/sys/fs/cgroup")
    parent, limit = (root / "memory", "memory.limit_in_bytes") if (root / "memory").is_dir() else (root, "memory.max")
    group = parent / f"baton-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(32 << 20))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        reason = f"this test needs root, and a memory control group of its own: {error}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group's last process")
    group.rmdir()


def test_a_child_that_is_stopped_or_silent_is_killed_and_started_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.host.supervisor.PULSE_PERIOD_S", 0.05)
    supervisor = bench.supervise(silent_seconds=0.3)
    supervisor.start([bench.service("stopped")])
    supervisor.start([bench.service("silent", beats=True)])  # it says that it beats, and does not
    supervisor.start([bench.service("quiet")])
    stopped, silent, quiet = bench.pids()
    os.kill(stopped, signal.SIGSTOP)

    def wait_then_stop() -> None:
        wait_until(lambda: bench.shown.getvalue().count("ready again") >= 2, "the second lives")
        os.kill(os.getpid(), signal.SIGINT)

    bench.watch_while(wait_then_stop)
    assert [alive(pid) for pid in (stopped, silent, quiet)] == [False, False, True]
    for how in ("stopped", "silent"):
        assert f"{how} died ({how} for 0 s, so it was killed: --silent-seconds 0.3)" in bench.shown.getvalue()


def test_a_stopped_child_is_left_alone_where_the_setting_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.host.supervisor.PULSE_PERIOD_S", 0.001)
    looks = itertools.count()
    look = Pulse.look
    monkeypatch.setattr(Pulse, "look", lambda self, now, ready: look(self, 1000.0 * next(looks), ready))
    bench.supervisor.start([bench.service("worker", beats=True)])
    (worker,) = bench.pids()
    os.kill(worker, signal.SIGSTOP)

    def wait_then_stop() -> None:
        wait_until(lambda: next(looks) > 100, "some looks")
        os.kill(os.getpid(), signal.SIGINT)

    bench.watch_while(wait_then_stop)
    assert alive(worker) and "died" not in bench.shown.getvalue()
    bench.supervisor.stop([["worker"]])
    assert bench.ends() == ["worker"], "it hears that it is to end"
