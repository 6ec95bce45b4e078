"""Observes whether a running child is stopped or hung: such a child serves no request and never ends itself."""

from pathlib import Path

from infra.process.run_queue import RunQueue
from infra.process.stillness import Stillness
from launcher.host.process import Process

STOPPED_STATES = ("T", "t")  # of proc(5): by a signal, by a debugger


class Pulse:
    """Signs of life of one process. Call `look` about once a second."""

    def __init__(self, service: Process, pid: int) -> None:
        self._service = service
        self._pid = pid
        self._stillness = Stillness()
        self._run_queue = RunQueue(pid)

    def look(self, now: float, ready: bool) -> tuple[float, str]:
        """Returns the seconds for which the child was stopped or silent, and which; `now`: time.monotonic.

        A `ready` service with `beats` touches its status file every second. Time on the run queue of a processor does
        not count as silence: killing a starved child would lose its requests, and add the load of a start.
        """
        waited = self._run_queue.look(now)
        if is_stopped(self._pid):
            return self._stillness.look("stopped", now), "stopped"
        beats = ready and self._service.beats and self._service.status_file is not None
        return self._stillness.look(self._beat() if beats else None, now, waited), "silent"

    def _beat(self) -> int:
        assert self._service.status_file is not None
        try:
            return self._service.status_file.stat().st_mtime_ns
        except FileNotFoundError:
            return 0


def is_stopped(pid: int) -> bool:
    """Returns whether a process exists and is stopped (proc(5))."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] in STOPPED_STATES
