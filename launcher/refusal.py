"""How a command refuses bad input: one line on standard error, and an exit status."""

import sys
from collections.abc import Callable, Sequence
from functools import wraps

from contracts.errors import BatonError
from launcher.words import BAD_INPUT_STATUS

Command = Callable[[Sequence[str]], int]


def refused(error: BatonError) -> int:
    """Prints the error as a line, and returns the exit status for it."""
    print(f"error: {error}", file=sys.stderr)
    return BAD_INPUT_STATUS


def refusing(command: Command) -> Command:
    """Makes a command that refuses its input by a `BatonError`, wherever it is raised."""

    @wraps(command)
    def run(arguments: Sequence[str]) -> int:
        try:
            return command(arguments)
        except BatonError as error:
            return refused(error)

    return run
