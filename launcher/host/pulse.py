"""Watches whether a child that runs also lives: one that is stopped or silent serves nobody, and never ends itself."""

from pathlib import Path

from infra.process.run_queue import RunQueue
from infra.process.stillness import Stillness
from launcher.host.process import Process

STOPPED = ("T", "t")  # by a signal; by a debugger


class Pulse:
    """Feels the pulse of one life of a service. `look` is to be called about once a second."""

    def __init__(self, service: Process, pid: int) -> None:
        self._service = service
        self._pid = pid
        self._stillness = Stillness()
        self._run_queue = RunQueue(pid)

    def look(self, now: float, ready: bool) -> tuple[float, str]:
        """Returns for how many seconds the child has been stopped or silent, and which; `now`: time.monotonic.

        A service that beats renews the time of its status file every second from when it is `ready` on. Time in which
        the child waited for a processor is not silence: a child that is killed for it takes its requests along, and
        its next start adds to the load that starved it.
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
    """Tells whether a process exists and is stopped (proc(5))."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] in STOPPED
