"""Sends the work of rank 0 to the other ranks of its worker, over a stream to each."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TypeVar

from msgspec import structs

from contracts.errors import RankError
from engine.parallel.device_handle import DeviceHandle
from engine.parallel.distributed import DistributedBackend, MeetingFile
from engine.parallel.rank_group import RankGroup
from engine.parallel.shard import Shard
from engine.parallel.shared_memory import RankWires, make_wires, timeval
from engine.plan import BlockMove, StepPlan, StepResult, TreeKVMoves
from infra.config.engine import EngineConfig
from infra.memory.shared_mapping import shared_memory
from worker.ranks.joining import join, meeting
from worker.ranks.orders import (
    JOINING,
    LOADED,
    AdapterAnswer,
    Answer,
    FreeAdapter,
    Launch,
    LoadShard,
    MakePool,
    Move,
    MoveTokens,
    Order,
    PoolHandles,
    Propose,
    ReadAdapter,
    RecordSteps,
    Spare,
    TellSpare,
    receive_answer,
    send,
)

Kind = TypeVar("Kind", bound=Answer)
MAX_START_S = 300.0
"""Seconds until a rank's process sends its first byte: it imports PyTorch, and a busy host starts many."""
MAX_ANSWER_S = 900.0
"""Seconds for a rank's answer: that it has loaded its part of the model, which rank 0 has loaded by then, or what it
was asked to do."""
MIN_WAIT_S = 0.001
"""Least time-out of a socket, in seconds: to the system 0 means to wait for ever."""


class RankStreams:
    """Implements `engine.parallel.peers.Peers`. `group`: all ranks, as rank 0 sees them."""

    def __init__(
        self, config: EngineConfig, ranks: int, threads: int, backend: DistributedBackend | None = None
    ) -> None:
        """Ranks exchange tensors by a `backend` of `torch.distributed`; None: over memory that they share, on a CPU."""
        self._meeting = TemporaryDirectory(prefix="baton-ranks-") if backend is not None else None
        ways: Sequence[RankWires | MeetingFile]
        if self._meeting is not None and backend is not None:
            ways = [meeting(self._meeting.name, backend, config)] * ranks
        else:
            ways = make_wires(ranks)
        self._streams: list[socket.socket] = []
        self._have_loaded = False
        self._telling = Lock()  # adapters are loaded on another thread than steps are launched
        for rank in range(1, ranks):
            here, there = socket.socketpair()
            self._streams.append(here)
            self.begin(rank, there, ways[rank])
            send(here, LoadShard(config, Shard(rank, ranks), threads, ways[rank]))
        if backend is not None:  # a process takes seconds to start, on a busy host many
            self._hear(JOINING, "start", MAX_START_S)
        self._collective = join(Shard(0, ranks), ways[0])
        self.group = RankGroup(Shard(0, ranks), self._collective)

    def begin(self, rank: int, stream: socket.socket, way: RankWires | MeetingFile) -> None:
        """Begins a rank that reads orders from `stream`, and lets go of what that rank has now."""
        raise NotImplementedError

    def make_pool(self, counts: Sequence[int], sizes: Sequence[int], slots: int) -> list[list[int]]:
        """Lets each rank make a new pool in memory that is shared. The first call waits until all have loaded."""
        self._wait_until_loaded()
        made = []
        for rank in range(1, 1 + len(self._streams)):
            made.append([shared_memory("baton-rank-kv", size) for size in sizes])
            self._tell_rank(rank, MakePool(list(counts), slots), made[-1])
        return made

    def make_device_pool(self, counts: Sequence[int], slots: int) -> list[list[DeviceHandle]]:
        """Lets each rank make a new pool on its GPU. The first call waits until all have loaded."""
        self._wait_until_loaded()
        self._tell(MakePool(list(counts), slots))
        return [each.handles for each in self._answers(PoolHandles)]

    def least_spare(self) -> int:
        self._tell(TellSpare())
        return min(each.bytes for each in self._answers(Spare))

    def _wait_until_loaded(self) -> None:
        if not self._have_loaded:
            self._hear(LOADED, "load the model", MAX_ANSWER_S)
            self._have_loaded = True

    def _hear(self, word: bytes, work: str, seconds: float) -> None:
        """Waits until each rank says the word when it has done its work. Raises `RankError` if one does not."""
        end = time.monotonic() + seconds
        for rank, stream in enumerate(self._streams, 1):
            with _answering(rank, stream, end - time.monotonic(), f"did not {work} in {seconds:g} s"):
                said = stream.recv(1)
            if said != word:
                raise RankError(f"rank {rank} could not {work}")

    def move(self, moves: Sequence[BlockMove]) -> None:
        self._tell(Move(list(moves)))

    def move_tokens(self, moves: Sequence[TreeKVMoves]) -> None:
        self._tell(MoveTokens(list(moves)))

    def record(self, longest: int) -> None:
        self._tell(RecordSteps(longest))

    def launch(self, plan: StepPlan, recorded: bool) -> None:
        works = [work if work.tokens is None else structs.replace(work, tokens=None) for work in plan.works]
        self._tell(Launch(structs.replace(plan, works=works), recorded))  # texts are for penalties and draft models

    def propose(self, result: StepResult) -> None:
        self._tell(Propose(result.step, result.tokens, result.accepted))

    def load_adapter(self, directory: Path) -> list[AdapterAnswer]:
        """Lets each rank load an adapter, and waits for their answers. On any thread, for one adapter at a time."""
        self._tell(ReadAdapter(str(directory)))
        return self._answers(AdapterAnswer)

    def free_adapter(self, digest: str) -> None:
        self._tell(FreeAdapter(digest))

    def _answers(self, kind: type[Kind]) -> list[Kind]:
        """Waits for the answer of each rank."""
        found: list[Kind] = []
        for rank, stream in enumerate(self._streams, 1):
            with _answering(rank, stream, MAX_ANSWER_S, f"has not answered in {MAX_ANSWER_S:g} s"):
                answer = receive_answer(stream)
            if not isinstance(answer, kind):
                raise RankError(f"rank {rank} has ended")
            found.append(answer)
        return found

    def close(self) -> None:
        """Lets the other ranks end."""
        for stream in self._streams:
            stream.close()
        self._collective.close()
        if self._meeting is not None:
            self._meeting.cleanup()

    def _tell(self, order: Order) -> None:
        with self._telling:
            for rank in range(1, 1 + len(self._streams)):
                self._tell_rank(rank, order)

    def _tell_rank(self, rank: int, order: Order, descriptors: Sequence[int] = ()) -> None:
        try:
            send(self._streams[rank - 1], order, descriptors)
        except OSError:
            raise RankError(f"rank {rank} has ended") from None


@contextmanager
def _answering(rank: int, stream: socket.socket, seconds: float, problem: str) -> Iterator[None]:
    """Bounds the time of a receive, but not of another thread's sends. Raises `RankError` if nothing comes."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(max(MIN_WAIT_S, seconds)))
    try:
        yield
    except BlockingIOError:
        raise RankError(f"rank {rank} {problem}") from None
    except OSError:  # its end of the stream was closed before it had read all
        raise RankError(f"rank {rank} has ended") from None
