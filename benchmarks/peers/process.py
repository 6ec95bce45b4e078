"""Runs a system under measurement: a process that loads its model once and runs workloads on request."""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from select import select
from typing import Any

from benchmarks.peers.model import Model
from benchmarks.peers.setup import Peer, PeerError, python_of
from benchmarks.processes.children import child, last_line, processor_seconds
from launcher.stages import StageDisplay

LOAD_TIMEOUT_S = 600.0
RUN_TIMEOUT_S = 600.0
POLL_SECONDS = 0.5
OURS = Peer("baton", "baton", ())
PLAIN = Peer("baton, plain", "baton", ())
"""Our engine without quantization, beside quantized weights."""


class PeerProcess:
    """A system with its model loaded; `versions` are those of its packages."""

    def __init__(self, peer: Peer, process: subprocess.Popen[str], log: Path) -> None:
        self.name = peer.name
        self.pid = process.pid
        self.versions: dict[str, str] = {}
        self._process = process
        self._log = log

    def loaded(self, stages: StageDisplay) -> None:
        """Waits until the model is loaded. Raises `PeerError`."""
        began = time.monotonic()
        assert self._process.stdout is not None
        while not select([self._process.stdout], [], [], POLL_SECONDS)[0]:
            waited = time.monotonic() - began
            stages.show(self.name, "loading the model", note=f"({waited:.0f} s)")
            if waited > LOAD_TIMEOUT_S:
                raise PeerError(f"{self.name}: is not ready after {LOAD_TIMEOUT_S:.0f} s (log: {self._log})")
        self.versions = self._answer()["versions"]
        stages.show(self.name, "ready", note=", ".join(f"{name} {what}" for name, what in self.versions.items()))

    def run(self, prompts: list[list[int]], output: int) -> tuple[float, list[list[int]]]:
        """Runs a workload; returns the seconds that the system measured itself, and the tokens. Raises `PeerError`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "output": output}) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None
        if not select([self._process.stdout], [], [], RUN_TIMEOUT_S)[0]:
            raise PeerError(f"{self.name}: no answer within {RUN_TIMEOUT_S:.0f} s (log: {self._log})")
        answer = self._answer()
        tokens: list[list[int]] = answer["tokens"]
        if [len(each) for each in tokens] != [output] * len(prompts):
            raise PeerError(f"{self.name}: gave another number of tokens than {output} for each of {len(prompts)}")
        return float(answer["seconds"]), tokens

    def processor_seconds(self) -> float:
        return processor_seconds(self.pid)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        found: dict[str, Any] = json.loads(line)
        return found

    def _ended(self) -> PeerError:
        return PeerError(f"{self.name}: has ended: {last_line(self._log)} (log: {self._log})")


@contextmanager
def running(peer: Peer, directory: Path, model: Model, threads: int) -> Iterator[PeerProcess]:
    environment = directory / peer.place
    python = python_of(directory, peer) if peer.packages else Path(sys.executable)
    quantization = "none" if peer is PLAIN else model.quantization
    log = directory / f"{peer.place}.log"
    log.unlink(missing_ok=True)
    told = (model.file_of(peer.name), model.dtype, threads, model.longest, quantization)
    command = [str(python), "-m", "benchmarks.peers.runners", peer.runner, *map(str, told)]
    with child(command, log, settings=peer.settings(environment, threads), piped=True) as process:
        yield PeerProcess(peer, process, log)


def loaded(
    stack: ExitStack, peers: Iterable[Peer], directory: Path, model: Model, threads: int, stages: StageDisplay
) -> list[PeerProcess]:
    """Starts the systems, which end with the `stack`; each model is loaded before the next. Raises `PeerError`."""
    systems = []
    for peer in peers:
        systems.append(stack.enter_context(running(peer, directory, model, threads)))
        systems[-1].loaded(stages)
    return systems
