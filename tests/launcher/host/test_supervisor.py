"""Real processes: what is started is stopped in order, what dies is started again, and nothing is left behind."""

import io
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.process.status import Status
from launcher.host.process import Process, watch_status_file
from launcher.host.pulse import Pulse
from launcher.host.signals import Signals
from launcher.host.supervisor import StartFailed, StopAsked, Supervisor
from launcher.instance.instances import ServiceState
from launcher.instance.log_file import LogFile
from launcher.stages import StageDisplay
from tests.waiting import alive, children, wait_until

READY_THEN_SLEEP = """
import os, signal, sys, time
def stop(*_):
    with open("ends", "a") as ends:
        ends.write(sys.argv[1] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
with open("pids", "a") as pids:
    pids.write(f"{os.getpid()}\\n")
with open(sys.argv[2] + ".new", "w") as status:
    status.write('{"stage": "ready", "percent": 100}')
os.replace(sys.argv[2] + ".new", sys.argv[2])
while True:
    signal.pause()
"""

IGNORES_SIGTERM = READY_THEN_SLEEP.replace(
    "signal.signal(signal.SIGTERM, stop)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
)


class Bench:
    def __init__(self, directory: Path, signals: Signals) -> None:
        self.directory = directory
        self.signals = signals
        self.log = LogFile(directory / "log", 1 << 20, 2, lambda sentence: None)
        self.shown = io.StringIO()
        self.supervisor = self.supervise(silent_seconds=0.0)

    def supervise(
        self, silent_seconds: float, changed: Callable[[tuple[ServiceState, ...]], None] = lambda states: None
    ) -> Supervisor:
        """Makes another supervisor, for which the bench will care."""
        self.supervisor = Supervisor(
            self.directory, os.environ, self.log, StageDisplay(self.shown), self.signals, silent_seconds, changed
        )
        return self.supervisor

    def service(self, name: str, code: str = READY_THEN_SLEEP, beats: bool = False) -> Process:
        """A Python process that runs `code` with its name and its status file as arguments."""
        status = self.directory / f"{name}.status"
        command = (sys.executable, "-I", "-S", "-c", code, name, str(status))
        return Process(name, command, watch_status_file(status), status, beats=beats)

    def pids(self) -> list[int]:
        path = self.directory / "pids"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def watch_while(self, action: Callable[[], None]) -> None:
        """Watches the services until `action`, in a thread of its own, asks to stop."""
        thread = threading.Thread(target=action)
        thread.start()
        self.supervisor.watch()
        thread.join()

    def ends(self) -> list[str]:
        return (self.directory / "ends").read_text().split()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Signals().installed() as signals:
        bench = Bench(tmp_path, signals)
        try:
            yield bench
        finally:
            bench.supervisor.stop([])
            bench.log.close()
            assert not [pid for pid in bench.pids() if alive(pid)]


def test_a_service_has_settings_of_its_own(bench: Bench) -> None:
    """Beside those of the instance, which they go before."""
    said = 'open("settings", "a").write(os.environ["OWN"] + " " + os.environ["HOME"] + "\\n")\n'
    code = READY_THEN_SLEEP.replace("signal.signal(signal.SIGTERM, stop)", said + "signal.signal(signal.SIGTERM, stop)")
    service = replace(bench.service("one", code), settings={"OWN": "kept", "HOME": "/its/own"})
    bench.supervisor.start([service])
    assert (bench.directory / "settings").read_text() == "kept /its/own\n"


def test_starts_all_and_stops_group_by_group(bench: Bench) -> None:
    bench.supervisor.start([bench.service(name) for name in ("redis", "worker", "gateway")])
    assert len(bench.pids()) == 3
    bench.supervisor.stop([["gateway"], ["worker"], ["redis"]])
    assert bench.ends() == ["gateway", "worker", "redis"]


def test_services_are_in_the_launchers_session_and_each_in_a_group_of_its_own(bench: Bench) -> None:
    """Linux shares cores out among sessions: one with a gateway alone would wait for those with busy workers."""
    bench.supervisor.start([bench.service(name) for name in ("worker", "gateway")])
    worker, gateway = bench.pids()
    assert os.getsid(worker) == os.getsid(gateway) == os.getsid(0)
    assert (os.getpgid(worker), os.getpgid(gateway)) == (worker, gateway), "Ctrl-C reaches the launcher only"


def test_a_child_that_dies_at_start_is_reported_in_its_own_words(bench: Bench) -> None:
    code = "import sys; print('error: --dtype: fp64: no', file=sys.stderr); print('noise'); sys.exit(2)"
    with pytest.raises(StartFailed, match=r"^bad did not start: --dtype: fp64: no$"):
        bench.supervisor.start([bench.service("good"), bench.service("bad", code)])


def test_a_child_that_says_nothing_is_reported_by_its_status_and_last_line(bench: Bench) -> None:
    with pytest.raises(StartFailed, match=r"bad did not start: ended with status 3: last words$"):
        bench.supervisor.start(
            [bench.service("bad", "print('first'); print('last words', end=''); raise SystemExit(3)")]
        )


def test_a_failed_status_ends_the_start_while_the_child_still_runs(bench: Bench) -> None:
    code = READY_THEN_SLEEP.replace('"stage": "ready", "percent": 100', '"stage": "failed", "error": "no room"')
    with pytest.raises(StartFailed, match="bad did not start: no room"):
        bench.supervisor.start([bench.service("bad", code)])


def test_a_signal_ends_the_start(bench: Bench) -> None:
    code = f"import os, signal; os.kill({os.getpid()}, signal.SIGTERM); signal.pause()"
    with pytest.raises(StopAsked):
        bench.supervisor.start([bench.service("slow", code)])


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
    assert "gateway died (killed by SIGKILL); it is started again in 1 s" in bench.shown.getvalue()
    assert "gateway is ready again" in bench.shown.getvalue()


def test_what_is_kept_starts_though_another_cannot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose GPU is broken is tried again and again, while the workers of other GPUs serve."""
    monkeypatch.setattr("launcher.host.supervised_service.FIRST_RESTART_DELAY_S", 0.1)
    bench.supervisor.keep([bench.service("broken", "raise SystemExit('error: no GPU')"), bench.service("worker")])

    def two_deaths() -> None:
        wait_until(lambda: bench.shown.getvalue().count("broken died (no GPU)") > 1, "the second death")
        wait_until(lambda: "worker is ready\n" in bench.shown.getvalue(), "the other")
        bench.signals.ask_to_stop()

    bench.watch_while(two_deaths)
    assert len(bench.pids()) == 1


def test_what_began_is_ended_where_another_service_cannot_begin(bench: Bench) -> None:
    before = children(os.getpid())
    missing = replace(bench.service("worker"), command=("/no/such/program",))
    with pytest.raises(StartFailed, match="worker did not start: "):
        bench.supervisor.start([bench.service("gateway", "import signal; signal.pause()"), missing])
    assert len(children(os.getpid())) == len(before) + 1
    bench.supervisor.stop([])
    assert children(os.getpid()) == before


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
        assert f"{name} died (killed by SIGKILL); it is started again at once" in bench.shown.getvalue()


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


def test_how_services_are_is_told_when_it_changes(bench: Bench) -> None:
    told: list[tuple[ServiceState, ...]] = []
    bench.supervise(silent_seconds=0.0, changed=told.append)
    bench.supervisor.start([bench.service("worker")])
    (first,) = bench.pids()
    assert told[-1] == (ServiceState("worker", "ready", first),)

    def kill() -> None:
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: "is ready again" in bench.shown.getvalue(), "the next life")
        bench.signals.ask_to_stop()

    bench.watch_while(kill)
    assert (ServiceState("worker", "died, and is started again"),) in told
    assert told[-1] == (ServiceState("worker", "ready", bench.pids()[1], restarts=1),)


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


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(bench: Bench) -> None:
    bench.supervisor.start([replace(bench.service("stubborn", IGNORES_SIGTERM), grace=0.2)])
    bench.supervisor.stop([["stubborn"]])
    assert not alive(bench.pids()[0])


def test_a_second_signal_ends_the_grace(bench: Bench) -> None:
    bench.supervisor.start([bench.service("stubborn", IGNORES_SIGTERM)])
    os.kill(os.getpid(), signal.SIGINT)
    bench.supervisor.watch()
    again = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    again.start()
    bench.supervisor.stop([["stubborn"]])
    again.join()
    assert not alive(bench.pids()[0])


def test_what_children_write_is_in_the_log_under_their_names(bench: Bench) -> None:
    code = "print('x' * 200000); print('tail', flush=True)\n" + READY_THEN_SLEEP
    bench.supervisor.start([bench.service("loud", code)])
    bench.supervisor.stop([])
    lines = (bench.directory / "log").read_text().splitlines()
    assert lines == ["loud      | " + "x" * 200000, "loud      | tail"]


def test_children_die_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, sys
from pathlib import Path
from tests.launcher.host.test_supervisor import Bench
from launcher.host.signals import Signals
with Signals().installed() as signals:
    bench = Bench(Path({str(tmp_path)!r}), signals)
    bench.supervisor.start([bench.service("worker")])
    print("started", flush=True)
    bench.supervisor.watch()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "started\n"
        (child,) = [int(line) for line in (tmp_path / "pids").read_text().split()]
        assert alive(child)
        launcher.kill()
    wait_until(lambda: not alive(child), "the child's end")


def test_a_status_of_an_earlier_life_is_not_believed(bench: Bench) -> None:
    service = bench.service("worker", "raise SystemExit(3)")
    assert service.status_file is not None
    service.status_file.write_text('{"stage": "ready", "percent": 100}')
    assert service.watch() == Status("ready", 100.0)
    with pytest.raises(StartFailed):
        bench.supervisor.start([service])
