"""Runs one stage in a process of its own, within its time limit.

A kernel that reads out of bounds ends its process' GPU context, and a kernel that never ends blocks its process. So no
two stages share a process, and a stage that hangs is killed with its children.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu_hour.packages import missing
from benchmarks.gpu_hour.stages import ROOT, Stage
from benchmarks.processes.python_path import python_path

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
PASSED = "passed"
SETTINGS = {"PYTHONUNBUFFERED": "1", "TRITON_INTERPRET": "0"}
"""Tests interpret kernels where they see no GPU; a run on the CPU must not pass for one on the GPU."""
KILL_TIMEOUT_S = 10.0
"""Wait for the end of a killed process, which may be stuck in the driver."""
MAX_LAST_LINES = 40
"""Lines kept from the end of a stage's output."""
MAX_LOGGED_CHARS = 200_000
"""Characters of a stage's output in the log, from its beginning and its end."""


@dataclass
class Outcome:
    """How a stage went."""

    status: str  # `passed`, or a failure in words
    seconds: float = 0.0
    last_lines: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    result: Any = None

    @property
    def passed(self) -> bool:
        return self.status == PASSED


def run(stage: Stage, seconds: float, out: Path) -> Outcome:
    lacking = [*missing(stage.needs), *(program for program in stage.programs if shutil.which(program) is None)]
    if lacking:
        return Outcome(f"left out, not installed here: {', '.join(lacking)}")
    with TemporaryDirectory() as directory:
        work, said = Path(directory), Path(directory) / "said.txt"
        command = [sys.executable, *(each.replace("{work}", str(work)) for each in stage.command)]
        begin = time.monotonic()
        status = _within(command, said, seconds)
        spent = time.monotonic() - begin
        text = said.read_text(errors="replace")
        with (out / "log.txt").open("a") as log:
            log.write(f"==== {stage.name}: {' '.join(command)}\n{_cut(text)}\n==== {status} after {spent:.0f} s\n")
        lines = [line for line in text.splitlines() if line.strip()]
        return Outcome(
            status,
            round(spent, 1),
            [line for line in lines if not line.startswith("|")][-MAX_LAST_LINES:],
            [line for line in lines if line.startswith("|")],
            _read(work / stage.result) if stage.result else None,
        )


def _read(place: Path) -> Any:
    try:
        return json.loads(place.read_text())
    except (OSError, ValueError):
        return None


def _cut(text: str) -> str:
    half = MAX_LOGGED_CHARS // 2
    left_out = len(text) - 2 * half
    return text if left_out <= 0 else f"{text[:half]}\n… {left_out} characters …\n{text[-half:]}"


def _within(command: Sequence[str], said: Path, seconds: float) -> str:
    with said.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": python_path(), **SETTINGS},
            start_new_session=True,
            preexec_fn=_die_with_us,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "out of time" if _killed(process) else "out of time, and could not be killed"
        finally:
            _killed(process)
    if code < 0:
        return f"crashed by {signal.Signals(-code).name}"
    return PASSED if code == 0 else f"failed with status {code}"


def _die_with_us() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _killed(process: "subprocess.Popen[bytes]") -> bool:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return True
