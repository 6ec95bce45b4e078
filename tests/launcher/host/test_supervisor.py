"""Real processes: what is started is stopped in order, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from infra.process.status import Status
from launcher.host.supervisor import StartFailed, StopAsked
from launcher.instance.instances import ServiceState
from tests.launcher.host.supervised import IGNORES_SIGTERM, READY_THEN_SLEEP, Bench
from tests.waiting import alive, children, wait_until


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


def test_what_is_kept_starts_though_another_cannot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose GPU is broken is tried again and again, while the workers of other GPUs serve."""
    monkeypatch.setattr("launcher.host.supervised_service.FIRST_RESTART_DELAY_S", 0.1)
    bench.supervisor.start_without_waiting(
        [bench.service("broken", "raise SystemExit('error: no GPU')"), bench.service("worker")]
    )

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
from tests.launcher.host.supervised import Bench
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
