"""Runs `./baton COMMAND`: the launcher script hands over to this module once `.venv` is complete."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial

from launcher.bench.bench import bench
from launcher.commands.chat import chat
from launcher.commands.down import down
from launcher.commands.key import key
from launcher.commands.logs import logs
from launcher.commands.manifests import print_manifests
from launcher.commands.models import models
from launcher.commands.operators import operators
from launcher.commands.pull import pull
from launcher.commands.restart import restart
from launcher.commands.run_service import run_service
from launcher.commands.run_tests import run_tests
from launcher.commands.show_config import show_config
from launcher.commands.status import status
from launcher.commands.unit import unit
from launcher.commands.up import up
from launcher.containers.compose import compose
from launcher.options import ROOT
from launcher.planning.plan import plan
from launcher.ray_process import ON_RAY, hand_over
from launcher.simulating.simulate import simulate
from launcher.words import INTERRUPTED_STATUS, answer

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "up": up,
    "chat": chat,
    "bench": bench,
    "plan": plan,
    "simulate": simulate,
    "status": status,
    "logs": logs,
    "restart": restart,
    "down": down,
    "config": show_config,
    "models": models,
    "pull": pull,
    "key": key,
    "run": run_service,
    "compose": compose,
    "manifests": print_manifests,
    "unit": unit,
    "operators": operators,
    "test": run_tests,
    **{name: partial(hand_over, name) for name in ON_RAY},
}


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns the exit status."""
    if answered := answer(arguments, ROOT):
        exit_status, text = answered
        print(text, end="", file=sys.stderr if exit_status else sys.stdout)
        return exit_status
    return COMMANDS[arguments[0]](arguments[1:])


def _run() -> int:
    """Runs the command. Output to a full disk is dropped, and changes no exit status."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # held back since `launcher.installing.install`
        status = main(sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = INTERRUPTED_STATUS
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    return status


if __name__ == "__main__":
    raise SystemExit(_run())
