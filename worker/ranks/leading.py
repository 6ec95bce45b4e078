"""Passes on what rank 0 does to the other ranks of its worker, over a stream to each."""

import socket
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from contracts.errors import RankError
from engine.parallel.rank_group import RankGroup
from engine.parallel.shard import Shard
from engine.parallel.shared_memory import RankWires, SharedMemoryCollective, make_wires
from engine.plan import BlockMove, StepPlan
from infra.config.engine import EngineConfig
from infra.process.shared_mapping import shared_memory
from worker.ranks.orders import (
    LOADED,
    AdapterAnswer,
    FreeAdapter,
    Launch,
    LoadShard,
    MakePool,
    Move,
    Order,
    ReadAdapter,
    RecordSteps,
    receive_answer,
    send,
)


class RankStreams:
    """Implements `engine.parallel.peers.Peers`. `group`: all ranks, as rank 0 sees them."""

    def __init__(self, config: EngineConfig, ranks: int, threads: int) -> None:
        wires = make_wires(ranks)
        self._collective = SharedMemoryCollective(Shard(0, ranks), wires[0])
        self.group = RankGroup(Shard(0, ranks), self._collective)
        self._streams: list[socket.socket] = []
        self._loaded = 0
        self._telling = Lock()  # adapters are loaded on another thread than steps are launched
        for rank in range(1, ranks):
            here, there = socket.socketpair()
            self._streams.append(here)
            self.begin(there, wires[rank])
            send(here, LoadShard(config, Shard(rank, ranks), threads, wires[rank].memory, wires[rank].sockets))

    def begin(self, stream: socket.socket, wires: RankWires) -> None:
        """Begins a rank that reads orders from `stream`, and lets go of what that rank has now."""
        raise NotImplementedError

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

    def record(self, longest: int) -> None:
        self._tell(RecordSteps(longest))

    def launch(self, plan: StepPlan, recorded: bool) -> None:
        self._tell(Launch(plan, recorded))

    def load_adapter(self, directory: Path) -> list[AdapterAnswer]:
        """Lets each rank load an adapter, and waits for their answers. On any thread, for one adapter at a time."""
        self._tell(ReadAdapter(str(directory)))
        return [self._answer(rank, stream) for rank, stream in enumerate(self._streams, 1)]

    def free_adapter(self, digest: str) -> None:
        self._tell(FreeAdapter(digest))

    @staticmethod
    def _answer(rank: int, stream: socket.socket) -> AdapterAnswer:
        answer = receive_answer(stream)
        if answer is None:
            raise RankError(f"rank {rank} has ended")
        return answer

    def close(self) -> None:
        """Lets the other ranks end."""
        for stream in self._streams:
            stream.close()
        self._collective.close()

    def _tell(self, order: Order) -> None:
        with self._telling:
            for rank in range(1, 1 + len(self._streams)):
                self._tell_rank(rank, order)

    def _tell_rank(self, rank: int, order: Order, descriptors: Sequence[int] = ()) -> None:
        try:
            send(self._streams[rank - 1], order, descriptors)
        except OSError:
            raise RankError(f"rank {rank} has ended") from None
