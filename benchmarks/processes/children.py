"""Runs child processes that end with us, however we end, and with all that they have started themselves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from benchmarks.processes.python_path import python_path
from contracts.errors import BatonError, ConfigError, ModelError
from infra.process.dying import die_with
from launcher.stages import StageDisplay

TERMINATION_GRACE_S = 15.0
"""From SIGTERM to SIGKILL: longer than a server's own drain."""


@contextmanager
def child(
    command: Sequence[str], log: Path, *, settings: Mapping[str, str] | None = None, piped: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Runs a process in a session of its own, so that Ctrl-C reaches only us; on exit it is ended.

    It finds this checkout's modules. What it says goes to `log`, or with `piped`, its input and output come to us and
    only its errors go there.
    """
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else errors,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1", **(settings or {})},
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),
            text=True,
        )
    try:
        yield process
    finally:
        end(process)


def end_on_termination() -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


def end(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # it went away with a line of ours unread
                stream.close()
    process.terminate()
    deadline = time.monotonic() + TERMINATION_GRACE_S
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        pass
    finally:
        with suppress(ProcessLookupError):  # the whole group is gone
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def processor_seconds(pid: int) -> float:
    """Returns the processor time of a process and its descendants so far, in s (proc(5), `stat` 14 and 15)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:  # it has ended, or this is no Linux
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds(each) for each in children)


def exit_status(work: Callable[[StageDisplay], None]) -> int:
    stages = StageDisplay(sys.stderr)
    end_on_termination()
    try:
        work(stages)
    except KeyboardInterrupt:
        return 130
    except BatonError as error:
        stages.settle()
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | ModelError) else 1
    return 0
