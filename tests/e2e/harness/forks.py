"""The services of a tested system as forks of one process that has imported their packages.

Importing PyTorch and transformers is most of what a worker's start takes, and the same each time. So `python -m
tests.e2e.harness.forks` imports them once, before any thread or socket is there, and each service begins as a fork of
it. From then on it is what `python -m SERVICE` would be: a process of its own, with its command line, environment, log
and exit status. (`tests/launcher/commands/test_up.py` and the benchmarks' tests start the same services as commands.)
Two moments are shorter. An interpreter that ends takes all modules apart, for some 0.4 s where it has to copy the pages
that it shares with others, and a fork leaves that to the kernel, as `multiprocessing`'s do. And a worker measures
itself as shortly as it can, which no test here is about.
"""

import atexit
import functools
import gc
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, NoReturn

import msgspec
from triton import knobs

import worker.start
from benchmarks.processes.python_path import python_path
from engine.start import profiling, step_contrasts
from launcher.deployment import SERVICE_ENVIRONMENT
from tests.e2e.harness.forked_ranks import ForkedRanks
from tests.e2e.harness.host import Host
from tests.interpreter import keep_lookups

ROOT = Path(__file__).parents[3]
SERVICES = ("prefill_service", "decode_service", "gateway")
MODELS = ("llama", "mistral", "qwen2", "qwen3")
"""Their configurations in transformers, which each worker reads one of."""
MAX_MESSAGE_BYTES = 1 << 16
"""Bytes of a message."""
MEASURING_S = 0.02
"""Seconds in which a worker measures prompt steps; it compares each pair of steps as few times as it may."""


class Start(msgspec.Struct, frozen=True):
    module: str
    options: list[str]
    environment: dict[str, str]
    host: Host
    forks_ranks: bool


class Forked:
    def __init__(self, start: Start, log: IO[bytes]) -> None:
        self._keeper, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(_server(), [msgspec.json.encode(start)], [theirs.fileno(), log.fileno()])
        self.pid = int(self._keeper.recv(MAX_MESSAGE_BYTES))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; that of a signal is negative. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            self._keeper.settimeout(timeout)
            try:
                self.returncode = int(self._keeper.recv(MAX_MESSAGE_BYTES))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            self._keeper.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _server() -> socket.socket:
    """What starts services when it is told to, from the first one until these tests end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, str(theirs.fileno())]
    environment = {**SERVICE_ENVIRONMENT, **os.environ, "PYTHONPATH": python_path()}
    with theirs:
        server = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
    atexit.register(server.wait)
    atexit.register(ours.close)  # called first: the last registered is
    return ours


def main() -> int:
    """Forks for each `Start` until the tests' end of the socket is closed. A fork returns when its service ends."""
    for service in SERVICES:
        importlib.import_module(f"{service}.__main__")
        del sys.modules[f"{service}.__main__"]  # it will run, under another name
    for model in MODELS:
        importlib.import_module(f"transformers.models.{model}.configuration_{model}")
    if knobs.runtime.interpret:
        keep_lookups()
    profiling.MEASURING_S, step_contrasts.MAX_PAIR_S = MEASURING_S, 0.0
    gc.freeze()  # what forks share stays shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end the services
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    with socket.socket(fileno=int(sys.argv[1])) as control:
        while True:
            message, files, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 2)
            if not message:
                return 0
            if os.fork() == 0:
                break
            for file in files:
                os.close(file)
    _keep(msgspec.json.decode(message, type=Start), *files)
    os._exit(0)  # what the server has imported is not the keeper's to take apart


def _keep(start: Start, tests: int, log: int) -> None:
    """Starts a service, says its process id and, when it has ended, its exit status. In the service, runs it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(tests)
        os.close(log)
        os.environ.clear()
        os.environ.update(start.environment)
        sys.argv = [start.module, *start.options]
        if start.forks_ranks:
            vars(worker.start)["RankProcesses"] = ForkedRanks
        with start.host.inside():
            _run(start.module)
    os.close(log)
    with socket.socket(fileno=tests) as connection:
        connection.send(str(pid).encode())
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _run(module: str) -> NoReturn:
    """Runs a service to its end and ends this process, whose threads and `atexit` functions come first, as ever."""
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        status = ended.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
