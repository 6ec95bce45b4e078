"""Starts the other ranks of a worker as processes that die with it, and passes on what rank 0 does."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from contracts.errors import RankError
from engine.parallel.rank_group import RankGroup
from engine.parallel.shard import Shard
from engine.parallel.shared_memory import SharedMemoryCollective, make_wires
from engine.plan import BlockMove, StepPlan
from infra.config.engine import EngineConfig
from infra.process.dying import die_with
from infra.process.shared_mapping import shared_memory
from worker.ranks.orders import LOADED, Launch, LoadShard, MakePool, Move, Order, send

END_S = 10.0
"""Seconds for the other ranks to end when their worker stops."""


class RankProcesses:
    """The ranks 1 and up of a worker. `group`: the group of all ranks, as rank 0 sees it."""

    def __init__(self, config: EngineConfig, ranks: int, threads: int) -> None:
        wires = make_wires(ranks)
        self.group = RankGroup(Shard(0, ranks), SharedMemoryCollective(Shard(0, ranks), wires[0]))
        self._streams: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._loaded = 0
        for rank in range(1, ranks):
            here, there = socket.socketpair()
            wire = wires[rank]
            inherited = (there.fileno(), wire.memory, *wire.sockets.values())
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "worker.ranks", str(there.fileno())],
                    pass_fds=inherited,
                    preexec_fn=die_with(os.getpid()),
                )
            )
            there.close()
            for number in inherited[1:]:
                os.close(number)
            self._streams.append(here)
            send(here, LoadShard(config, Shard(rank, ranks), threads, wire.memory, wire.sockets))

    def watch(self, ended: Callable[[str], None]) -> None:
        """Calls `ended` with a sentence, on another thread, when a rank's process ends."""
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(target=self._wait, args=(rank, process, ended), daemon=True).start()

    def _wait(self, rank: int, process: subprocess.Popen[bytes], ended: Callable[[str], None]) -> None:
        status = process.wait()
        ended(f"rank {rank} has ended with status {status}")

    def make_pool(self, counts: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
        """Lets each rank make a new pool in memory that is shared. The first call waits until all have loaded."""
        for rank, stream in list(enumerate(self._streams, 1))[self._loaded :]:
            if stream.recv(1) != LOADED:
                raise RankError(f"rank {rank} could not load the model")
            self._loaded = rank
        made = []
        for rank in range(1, 1 + len(self._streams)):
            made.append([shared_memory("baton-rank-kv", size) for size in sizes])
            self._tell_rank(rank, MakePool(list(counts)), made[-1])
        return made

    def move(self, moves: Sequence[BlockMove]) -> None:
        self._tell(Move(list(moves)))

    def launch(self, plan: StepPlan) -> None:
        self._tell(Launch(plan))

    def close(self) -> None:
        """Lets the other ranks end, and ends what does not."""
        for stream in self._streams:
            stream.close()
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def _tell(self, order: Order) -> None:
        for rank in range(1, 1 + len(self._streams)):
            self._tell_rank(rank, order)

    def _tell_rank(self, rank: int, order: Order, descriptors: Sequence[int] = ()) -> None:
        try:
            send(self._streams[rank - 1], order, descriptors)
        except OSError:
            raise RankError(f"rank {rank} has ended") from None
