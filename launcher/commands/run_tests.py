"""`baton test`: ruff, and then always pytest with mypy beside it, so that the last line is pytest's closing line.

Where mypy takes longer than the tests, its outcome comes last. mypy and a third process of tests take the time in
which tests wait. With a selection of tests (`-k`, `-m`, a path) only pytest runs.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from launcher.devices.gpus import visible_gpus
from launcher.options import ROOT
from launcher.words import INTERRUPTED_STATUS

HELP = """./baton test [PYTEST OPTIONS]: runs ruff, mypy and pytest
./baton test tests/launcher: runs the tests of one room, and neither ruff nor mypy; so do -k WORD and -m MARK
"""
CHECKS = (
    ("ruff", ("ruff", "check", ".")),
    ("format", ("ruff", "format", "--check", ".")),
)
MYPY_COMMAND = ("mypy", "--num-workers=auto")
# Three files of tests at a time, of which one or two wait for a system: more would take each other's memory and
# deadlines, on a GPU even two would.
THREE_AT_A_TIME = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
# `./baton` sets PYTHONPATH, and mypy would take the packages on it for installed libraries. Without bytecode each
# service that a test starts would compile the product again.
UNSET_VARIABLES = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
MYPY_NICENESS = 10
"""How much mypy gives way to the tests, which have deadlines."""


def run_tests(arguments: Sequence[str]) -> int:
    """Runs the checks and the tests; `arguments` go to pytest. Returns the exit status of the first failure, or 0."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(HELP, end="")
        return 0
    command = ("pytest", *(() if visible_gpus() else THREE_AT_A_TIME), *arguments)
    try:
        if selects(arguments):
            return _run(command)
        statuses = [_check(name, check) for name, check in CHECKS]
        with beside("mypy", MYPY_COMMAND) as mypy:
            statuses += [_run(command)]
        return next((status for status in [*statuses, *mypy] if status), 0)
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS


def selects(arguments: Sequence[str]) -> bool:
    """Returns whether these arguments of pytest name some tests: by `-k`, `-m`, a path or a test's id."""
    return any(
        word.startswith(("-k", "-m")) or (not word.startswith("-") and (ROOT / word.partition("::")[0]).exists())
        for word in arguments
    )


def _check(name: str, command: Sequence[str]) -> int:
    started = time.monotonic()
    status = _run(command)
    print(_outcome(name, status, started), flush=True)
    return status


@contextmanager
def beside(name: str, command: Sequence[str]) -> Iterator[list[int]]:
    """Runs a check beside the work inside, and prints its output and its outcome when it ends.

    Yields a list that holds the check's exit status once the context has ended, which waits for the check.
    """
    started = time.monotonic()
    statuses: list[int] = []
    with tempfile.TemporaryFile("w+") as output:
        check = subprocess.Popen(_command(command), cwd=ROOT, env=_environment(), stdout=output, stderr=output)
        os.setpriority(os.PRIO_PROCESS, check.pid, MYPY_NICENESS)

        def tell() -> None:
            statuses.append(check.wait())
            output.seek(0)
            print(f"\n{output.read()}{_outcome(name, statuses[0], started)}", flush=True)

        teller = threading.Thread(target=tell)
        teller.start()
        try:
            yield statuses
        except BaseException:
            check.terminate()
            raise
        finally:
            teller.join()


def _outcome(name: str, status: int, started: float) -> str:
    return f"{name}: {'failed' if status else 'passed'} in {time.monotonic() - started:.1f} s"


def _run(command: Sequence[str]) -> int:
    return subprocess.run(_command(command), cwd=ROOT, env=_environment()).returncode


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", *words]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in UNSET_VARIABLES}
