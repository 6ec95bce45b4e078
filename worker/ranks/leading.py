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
from worker.ranks import orders
from worker.ranks.joining import join, meeting

Kind = TypeVar("Kind", bound=orders.Answer)
MAX_START_S = 300.0
"""Seconds until a rank's process sends its first byte: it imports PyTorch, and a busy host starts many."""
MAX_ANSWER_S = 900.0
"""Seconds for a rank's answer, also to the order to load its part of the model, which rank 0 has loaded by then."""
MIN_WAIT_S = 0.001
"""Least time-out of a socket, in seconds: to the system 0 means to wait for ever."""


class RankStreams:
    """Implements `engine.parallel.peers.Peers`. `group`: all ranks, as rank 0 sees them."""

    def __init__(
        self, config: EngineConfig, ranks: int, threads: int, backend: DistributedBackend | None = None
    ) -> None:
        """Ranks exchange tensors by a `backend` of `torch.distributed`; None: over memory that they share, on a CPU."""
        self._meeting = TemporaryDirectory(prefix="baton-ranks-") if backend is not None else None
        links: Sequence[RankWires | MeetingFile]
        if self._meeting is not None and backend is not None:
            links = [meeting(self._meeting.name, backend, config)] * ranks
        else:
            links = make_wires(ranks)
        self._streams: list[socket.socket] = []
        self._have_loaded = False
        self._sending = Lock()  # adapters are loaded on another thread than steps are launched
        for rank in range(1, ranks):
            own_end, rank_end = socket.socketpair()
            self._streams.append(own_end)
            self.begin(rank, rank_end, links[rank])
            orders.send(own_end, orders.LoadShard(config, Shard(rank, ranks), threads, links[rank]))
        if backend is not None:  # a process takes seconds to start, on a busy host many
            self._await_word(orders.JOINING, "start", MAX_START_S)
        self._collective = join(Shard(0, ranks), links[0])
        self.group = RankGroup(Shard(0, ranks), self._collective)

    def begin(self, rank: int, stream: socket.socket, link: RankWires | MeetingFile) -> None:
        """Starts a rank that reads orders from `stream`; closes this process's copies of `stream` and of the link."""
        raise NotImplementedError

    def make_pool(self, counts: Sequence[int], sizes: Sequence[int], slots: int) -> list[list[int]]:
        """Lets each rank make a new pool in memory that is shared. The first call waits until all have loaded."""
        self._wait_until_loaded()
        made = []
        for rank in range(1, 1 + len(self._streams)):
            made.append([shared_memory("baton-rank-kv", size) for size in sizes])
            self._send(rank, orders.MakePool(list(counts), slots), made[-1])
        return made

    def make_device_pool(self, counts: Sequence[int], slots: int) -> list[list[DeviceHandle]]:
        """Lets each rank make a new pool on its GPU. The first call waits until all have loaded."""
        self._wait_until_loaded()
        self._send_all(orders.MakePool(list(counts), slots))
        return [each.handles for each in self._answers(orders.PoolHandles)]

    def least_spare(self) -> int:
        self._send_all(orders.ReportSpare())
        return min(each.bytes for each in self._answers(orders.Spare))

    def _wait_until_loaded(self) -> None:
        if not self._have_loaded:
            self._await_word(orders.LOADED, "load the model", MAX_ANSWER_S)
            self._have_loaded = True

    def _await_word(self, word: bytes, work: str, seconds: float) -> None:
        """Waits until each rank has sent `word`: it has done its work. Raises `RankError` if a rank does not."""
        end = time.monotonic() + seconds
        for rank, stream in enumerate(self._streams, 1):
            with _answering(rank, stream, end - time.monotonic(), f"did not {work} in {seconds:g} s"):
                received = stream.recv(1)
            if received != word:
                raise RankError(f"rank {rank} could not {work}")

    def move(self, moves: Sequence[BlockMove]) -> None:
        self._send_all(orders.Move(list(moves)))

    def move_tokens(self, moves: Sequence[TreeKVMoves]) -> None:
        self._send_all(orders.MoveTokens(list(moves)))

    def record(self, longest: int) -> None:
        self._send_all(orders.RecordSteps(longest))

    def launch(self, plan: StepPlan, recorded: bool) -> None:
        works = [work if work.tokens is None else structs.replace(work, tokens=None) for work in plan.works]
        plan = structs.replace(plan, works=works)  # without texts, which only penalties and draft models read
        self._send_all(orders.Launch(plan, recorded))

    def propose(self, result: StepResult) -> None:
        self._send_all(orders.Propose(result.step, result.tokens, result.accepted))

    def load_adapter(self, directory: Path) -> list[orders.AdapterAnswer]:
        """Lets each rank load an adapter, and waits for their answers. On any thread, for one adapter at a time."""
        self._send_all(orders.ReadAdapter(str(directory)))
        return self._answers(orders.AdapterAnswer)

    def free_adapter(self, digest: str) -> None:
        self._send_all(orders.FreeAdapter(digest))

    def _answers(self, kind: type[Kind]) -> list[Kind]:
        """Waits for the answer of each rank."""
        found: list[Kind] = []
        for rank, stream in enumerate(self._streams, 1):
            with _answering(rank, stream, MAX_ANSWER_S, f"has not answered in {MAX_ANSWER_S:g} s"):
                answer = orders.receive_answer(stream)
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

    def _send_all(self, order: orders.Order) -> None:
        with self._sending:
            for rank in range(1, 1 + len(self._streams)):
                self._send(rank, order)

    def _send(self, rank: int, order: orders.Order, descriptors: Sequence[int] = ()) -> None:
        try:
            orders.send(self._streams[rank - 1], order, descriptors)
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
