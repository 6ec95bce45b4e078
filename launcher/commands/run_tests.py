"""`baton test`: ruff, mypy, and then always pytest, so that the last line is pytest's closing line.

With a selection of tests (`-k`, `-m`, a path) only pytest runs.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from launcher.devices.gpus import visible_gpus
from launcher.options import ROOT

HELP = """./baton test [PYTEST OPTIONS]: runs ruff, mypy and pytest
./baton test tests/launcher: runs the tests of one room, and neither ruff nor mypy; so do -k WORD and -m MARK
"""
CHECKS = (
    ("ruff", ("ruff", "check", ".")),
    ("format", ("ruff", "format", "--check", ".")),
    ("mypy", ("mypy", "--num-workers=auto")),
)
# Two files of tests at a time: more would take each other's memory and deadlines, on a GPU even two would.
TWO_AT_A_TIME = ("-n", "auto", "--maxprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")
# `./baton` sets PYTHONPATH, and mypy would take the packages on it for installed libraries. Without bytecode each
# service that a test starts would compile the product again.
UNSET_VARIABLES = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
INTERRUPTED_STATUS = 128 + signal.SIGINT


def run_tests(arguments: Sequence[str]) -> int:
    """Runs the checks and the tests; `arguments` go to pytest. Returns the exit status of the first failure, or 0."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(HELP, end="")
        return 0
    try:
        statuses = [] if selects(arguments) else [_check(name, command) for name, command in CHECKS]
        statuses.append(_run(("pytest", *(() if visible_gpus() else TWO_AT_A_TIME), *arguments)))
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS
    return next((status for status in statuses if status), 0)


def selects(arguments: Sequence[str]) -> bool:
    """Returns whether these arguments of pytest name some tests: by `-k`, `-m`, a path or a test's id."""
    return any(
        word.startswith(("-k", "-m")) or (not word.startswith("-") and (ROOT / word.partition("::")[0]).exists())
        for word in arguments
    )


def _check(name: str, command: Sequence[str]) -> int:
    started = time.monotonic()
    status = _run(command)
    print(f"{name}: {'failed' if status else 'passed'} in {time.monotonic() - started:.1f} s", flush=True)
    return status


def _run(command: Sequence[str]) -> int:
    environment = {name: value for name, value in os.environ.items() if name not in UNSET_VARIABLES}
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment).returncode
