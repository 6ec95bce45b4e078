"""`baton test`: ruff, mypy, then pytest, whatever fails before, so that the last line is pytest's closing line."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from launcher.host.gpus import visible_gpus
from launcher.options import ROOT

CHECKS = (("ruff", ("ruff", "check", ".")), ("format", ("ruff", "format", "--check", ".")), ("mypy", ("mypy",)))
# Two files of tests at a time: more would take each other's memory and deadlines, on a GPU even two would.
TWO_AT_A_TIME = ("-n", "auto", "--maxprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")
INTERRUPTED = 128 + signal.SIGINT


def run_tests(arguments: Sequence[str]) -> int:
    """Runs everything; `arguments` go to pytest. The exit status is that of the first check that failed."""
    if arguments[:1] in (["-h"], ["--help"]):
        print("./baton test [PYTEST OPTIONS]: runs ruff, mypy and pytest; `./baton test -k launcher` runs some tests")
        return 0
    try:
        statuses = [_check(name, command) for name, command in CHECKS]
        statuses.append(_run(("pytest", *(() if visible_gpus() else TWO_AT_A_TIME), *arguments)))
    except KeyboardInterrupt:
        return INTERRUPTED
    return next((status for status in statuses if status), 0)


def _check(name: str, command: Sequence[str]) -> int:
    started = time.monotonic()
    status = _run(command)
    print(f"{name}: {'failed' if status else 'passed'} in {time.monotonic() - started:.1f} s", flush=True)
    return status


def _run(command: Sequence[str]) -> int:
    # `./baton` sets PYTHONPATH; mypy would take what it finds there for installed libraries.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment).returncode
