"""Runs one service in this process (`baton run decode OPTIONS`), for deployments over several hosts."""

import os
import sys
from collections.abc import Sequence

from launcher.deployment import SERVICE_ENVIRONMENT, START_ORDER, module_of
from launcher.host.redis_server import server_binary
from launcher.refusal import refusing
from launcher.words import BAD_INPUT_STATUS

RUN_HELP = """\
Runs one service of a deployment, until SIGTERM.

  ./baton run redis OPTIONS      the Valkey or Redis server that `./baton up` would start; the options are its own
  ./baton run prefill OPTIONS    a prefill worker
  ./baton run decode OPTIONS     a decode worker
  ./baton run workers OPTIONS    all workers of this host, one on each GPU, which are started again if they die
  ./baton run gateway OPTIONS    a gateway
  ./baton run dashboard OPTIONS  the dashboard

`./baton run SERVICE --help` lists a service's options. docs/operations.md, Several hosts, has a whole deployment.
"""


@refusing
def run_service(arguments: Sequence[str]) -> int:
    """Replaces this process by the service's; returns an exit status only for bad input: 2."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(RUN_HELP, end="")
        return 0
    name, *options = arguments
    modules: dict[str, str] = {role: module_of(role) for group in START_ORDER for role in group}
    modules["workers"] = "launcher.host.host_workers"
    if name not in modules:
        print(f"error: {name!r} is no service of baton; there are: {', '.join(modules)}", file=sys.stderr)
        return BAD_INPUT_STATUS
    program = [str(server_binary())] if name == "redis" else [sys.executable, "-P", "-m", modules[name]]
    command = [*program, *options]
    os.execve(command[0], command, {**SERVICE_ENVIRONMENT, **os.environ})
