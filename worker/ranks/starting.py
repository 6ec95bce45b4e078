"""Starts the other ranks of a worker as processes that die with it."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

from engine.parallel.shared_memory import RankWires
from infra.config.engine import EngineConfig
from infra.process.dying import die_with
from worker.ranks.leading import RankStreams

END_S = 10.0
"""Seconds for the other ranks to end when their worker stops."""


class RankProcesses(RankStreams):
    """The ranks 1 and up of a worker."""

    def __init__(self, config: EngineConfig, ranks: int, threads: int) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        super().__init__(config, ranks, threads)

    def begin(self, stream: socket.socket, wires: RankWires) -> None:
        self._processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "worker.ranks", str(stream.fileno())],
                pass_fds=(stream.fileno(), wires.memory, *wires.sockets.values()),
                preexec_fn=die_with(os.getpid()),
            )
        )
        stream.close()
        for number in (wires.memory, *wires.sockets.values()):
            os.close(number)

    def watch(self, ended: Callable[[str], None]) -> None:
        """Calls `ended` with a sentence, on another thread, when a rank's process ends."""
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(target=self._wait, args=(rank, process, ended), daemon=True).start()

    def _wait(self, rank: int, process: subprocess.Popen[bytes], ended: Callable[[str], None]) -> None:
        status = process.wait()
        ended(f"rank {rank} has ended with status {status}")

    def close(self) -> None:
        """Lets the other ranks end, and ends what does not."""
        super().close()
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
