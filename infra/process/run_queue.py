"""Measures how long threads wait for a processor: a process that waits in the run queue is starved, not hung."""

from dataclasses import dataclass
from pathlib import Path

NS_PER_S = 1e9
RUNNABLE_STATE = "R"  # runs, or waits for a processor (proc(5))
TICKS_S = 0.1  # ten ticks of the slowest kernel; the counts of a running thread change with each tick


@dataclass(frozen=True)
class ThreadCounts:
    """The kernel's counts for one thread at the last look."""

    counts: str  # ns on a processor, ns in the run queue, times scheduled
    runnable_since: float | None  # s, the first look that found it runnable with these counts
    waited: float  # s in the run queue so far


class RunQueue:
    """Measures how long the threads of a process have been runnable without running.

    The kernel counts this time per thread: the second figure of `/proc/PID/task/TID/schedstat` (Linux'
    `Documentation/scheduler/sched-stats.rst`). It adds a wait when the wait ends, so a runnable thread with unchanged
    counts is waiting since then. Without these counts, all waits are 0.
    """

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._threads: dict[str, ThreadCounts] = {}

    def look(self, now: float) -> float:
        """Returns the longest wait of a thread since the last look, in seconds; `now`: monotonic.

        Any thread's wait counts: the event loop may need a lock that a waiting thread holds. A new thread has not
        waited.
        """
        before, self._threads = self._threads, self._read(now)
        waits = [thread.waited - before[name].waited for name, thread in self._threads.items() if name in before]
        return max([0.0, *waits])

    def _read(self, now: float) -> dict[str, ThreadCounts]:
        found = {}
        for name in self._names():
            try:
                counts = (self._tasks / name / "schedstat").read_text()
                state = (self._tasks / name / "stat").read_text().rpartition(")")[2].split()[0]
                waited = int(counts.split()[1]) / NS_PER_S
            except (OSError, IndexError, ValueError):
                continue  # the thread has ended, or the kernel does not count
            since = self._runnable_since(name, counts, now) if state == RUNNABLE_STATE else None
            waits_s = now - since if since is not None and now - since > TICKS_S else 0.0
            found[name] = ThreadCounts(counts, since, waited + waits_s)
        return found

    def _runnable_since(self, name: str, counts: str, now: float) -> float:
        known = self._threads.get(name)
        if known is None or known.counts != counts or known.runnable_since is None:
            return now
        return known.runnable_since

    def _names(self) -> list[str]:
        try:
            return [task.name for task in self._tasks.iterdir()]
        except OSError:
            return []
