"""Runs `./baton COMMAND`: the launcher script hands over to this module once `.venv` is complete."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from launcher.chat import chat
from launcher.compose import compose
from launcher.key import key
from launcher.manifests import print_manifests
from launcher.ray_process import ON_RAY, hand_over
from launcher.run_service import run_service
from launcher.run_tests import run_tests
from launcher.up import up

HELP = """\
Baton serves large language models with prefill and decode split into two services.

  ./baton up      start everything on this host, and stop it with Ctrl-C
  ./baton chat    talk to the running instance
  ./baton key     make, list and revoke the keys that clients need
  ./baton run     run one service, such as ./baton run decode, of a deployment over several hosts
  ./baton status     say how the deployment on a Ray cluster is
  ./baton down       end the deployment on a Ray cluster, and leave nothing of it
  ./baton ray        run Ray's own command line, such as ./baton ray start --head
  ./baton compose    print compose.yaml, for Docker Compose on one host
  ./baton manifests  print manifests, for Kubernetes
  ./baton test    run ruff, mypy and the tests; further arguments go to pytest

Examples:
  ./baton up                                       the demo model, at http://127.0.0.1:8000/v1
  ./baton up --model Qwen/Qwen3-0.6B               a model from the Hugging Face hub
  ./baton up --model ~/models/mine --prefill 2     two prefill workers and one decode worker
  ./baton up --port 18080 --dashboard-port 0       another port, no dashboard
  ./baton up --on ray --prefill 2 --decode 2       spread over the Ray cluster that this host is a node of
  ./baton chat --url http://127.0.0.1:18080
  ./baton test -k launcher

`./baton COMMAND --help` lists a command's options.
"""
COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "up": up,
    "chat": chat,
    "key": key,
    "run": run_service,
    "compose": compose,
    "manifests": print_manifests,
    "test": run_tests,
    **{name: partial(hand_over, name) for name in ON_RAY},
}


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    command = COMMANDS.get(arguments[0])
    if command is None:
        print(f"error: {arguments[0]!r} is no command of baton; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return command(arguments[1:])


def _run() -> int:
    """Runs the command; output that nobody can take, as its disk is full, is left out and changes no exit status."""
    status = main(sys.argv[1:])
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    return status


if __name__ == "__main__":
    raise SystemExit(_run())
