"""Runs `./baton COMMAND`: the launcher script hands over to this module once `.venv` is complete."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from launcher.options import ROOT
from launcher.ray_process import ON_RAY, hand_over
from launcher.words import INTERRUPTED_STATUS, answer

COMMAND_FUNCTIONS = {
    "up": "launcher.commands.up:up",
    "chat": "launcher.commands.chat:chat",
    "bench": "launcher.bench.bench:bench",
    "plan": "launcher.planning.plan:plan",
    "simulate": "launcher.simulating.simulate:simulate",
    "status": "launcher.commands.status:status",
    "logs": "launcher.commands.logs:logs",
    "restart": "launcher.commands.restart:restart",
    "down": "launcher.commands.down:down",
    "config": "launcher.commands.show_config:show_config",
    "models": "launcher.commands.models:models",
    "pull": "launcher.commands.pull:pull",
    "key": "launcher.commands.key:key",
    "run": "launcher.commands.run_service:run_service",
    "compose": "launcher.containers.compose:compose",
    "manifests": "launcher.commands.manifests:print_manifests",
    "unit": "launcher.commands.unit:unit",
    "operators": "launcher.commands.operators:operators",
    "test": "launcher.commands.run_tests:run_tests",
}
"""Command → module and function. Only the command's own module is loaded: all of them take three times as long."""


def command(name: str) -> Callable[[Sequence[str]], int]:
    """Returns the function of a command, which takes further arguments and returns the exit status."""
    if name in ON_RAY:
        return partial(hand_over, name)
    module, _, function = COMMAND_FUNCTIONS[name].partition(":")
    run: Callable[[Sequence[str]], int] = getattr(import_module(module), function)
    return run


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns the exit status."""
    if answered := answer(arguments, ROOT):
        exit_status, text = answered
        print(text, end="", file=sys.stderr if exit_status else sys.stdout)
        return exit_status
    return command(arguments[0])(arguments[1:])


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
