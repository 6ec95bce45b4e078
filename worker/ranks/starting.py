"""Starts the other ranks of a worker as processes that die with it."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from contracts.kinds import LogFormat
from engine.parallel.distributed import DistributedBackend, MeetingFile
from engine.parallel.shared_memory import RankWires
from infra.config.engine import EngineConfig
from infra.process.dying import die_with
from worker.ranks.gpus import VISIBLE_GPUS
from worker.ranks.leading import RankStreams

END_S = 10.0
"""Seconds for the other ranks to end when their worker stops."""


class RankProcess(Protocol):
    """The part of `subprocess.Popen` that is used of a rank's process."""

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class RankProcesses(RankStreams):
    """The ranks 1 and up of a worker."""

    def __init__(
        self,
        config: EngineConfig,
        ranks: int,
        threads: int,
        backend: DistributedBackend | None = None,
        gpus: Sequence[str] = (),
        form: LogFormat = "text",
    ) -> None:
        """`gpus`: the entry of CUDA_VISIBLE_DEVICES of each rank; (): the ranks compute on a CPU."""
        self._form: LogFormat = form
        self._processes: list[RankProcess] = []
        self._gpus = gpus
        self._closing = False
        super().__init__(config, ranks, threads, backend)

    def begin(self, rank: int, stream: socket.socket, link: RankWires | MeetingFile) -> None:
        wires = () if isinstance(link, MeetingFile) else (link.memory, *link.sockets.values())
        gpu = {VISIBLE_GPUS: self._gpus[rank]} if self._gpus else {}  # so it opens no context on other GPUs
        self._processes.append(self.start([str(stream.fileno()), self._form], (stream.fileno(), *wires), gpu))
        stream.close()
        for number in wires:
            os.close(number)

    def start(self, arguments: Sequence[str], descriptors: Sequence[int], more: Mapping[str, str]) -> RankProcess:
        """Starts a rank's process with these descriptors; `more` is added to its environment."""
        return subprocess.Popen(
            [sys.executable, "-m", "worker.ranks", *arguments],
            pass_fds=descriptors,
            preexec_fn=die_with(os.getpid()),
            env={**os.environ, **more},
        )

    def watch(self, ended: Callable[[str], None]) -> None:
        """Calls `ended` with a sentence, on another thread, when a rank's process ends."""
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(target=self._wait, args=(rank, process, ended), daemon=True).start()

    def _wait(self, rank: int, process: RankProcess, ended: Callable[[str], None]) -> None:
        status = process.wait()
        if not self._closing:
            ended(f"rank {rank} has ended with status {status}")

    def close(self) -> None:
        """Lets the other ranks end, and kills processes that do not end in time."""
        self._closing = True
        super().close()
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
