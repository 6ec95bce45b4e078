"""A supervisor of real Python processes, for tests: in a directory of its own, with a log."""

import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from launcher.host.process import Process, watch_status_file
from launcher.host.signals import Signals
from launcher.host.supervisor import Supervisor
from launcher.instance.instances import ServiceState
from launcher.instance.log_file import LogFile
from launcher.stages import StageDisplay

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
    """A supervisor, with Python processes for it to run, and what they write into its directory."""

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
