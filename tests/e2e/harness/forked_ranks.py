"""The ranks of a tested worker as forks of its rank 0, which has imported all that they need.

A rank's own start takes seconds of a processor, and a system of widths has up to sixteen. A fork is otherwise what
`python -m worker.ranks` is: a process with its arguments and descriptors, no others, that dies with rank 0.
"""

import os
import runpy
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn

from infra.process.dying import die_with
from worker.ranks.starting import RankProcess, RankProcesses

STANDARD_STREAMS = (0, 1, 2)
MAX_DESCRIPTORS = 1 << 16


class ForkedRanks(RankProcesses):
    def start(self, arguments: Sequence[str], descriptors: Sequence[int], more: Mapping[str, str]) -> RankProcess:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with(parent)()
            _run(arguments, descriptors, more)
        return ForkedRank(pid)


class ForkedRank:
    """Implements `worker.ranks.starting.RankProcess`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._status = 0
        self._ended = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._ended.set()

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("a rank", timeout or 0)
        return self._status

    def kill(self) -> None:
        if not self._ended.is_set():
            os.kill(self._pid, 9)


def _run(arguments: Sequence[str], descriptors: Sequence[int], more: Mapping[str, str]) -> NoReturn:
    """Ends this process, however the rank ends: the frames below belong to rank 0."""
    status = 1
    try:
        kept = sorted({*STANDARD_STREAMS, *descriptors})
        for after, before in zip(kept, [*kept[1:], MAX_DESCRIPTORS], strict=True):
            os.closerange(after + 1, before)  # an open end of another rank's stream would hide its end
        os.environ.update(more)
        sys.argv = ["worker.ranks", *arguments]
        runpy.run_module("worker.ranks", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
