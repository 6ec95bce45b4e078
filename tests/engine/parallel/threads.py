"""Ranks as threads of one process, which pass tensors to each other."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from engine.parallel.rank_group import NoSharedBuffers, RankGroup
from engine.parallel.shard import Shard
from engine.parallel.shared_memory import SharedMemoryCollective, make_wires
from engine.parallel.sums import tree_sum

T = TypeVar("T")
MEETING_S = 60.0


class Meeting:
    """Where the ranks exchange one tensor each at a time."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=MEETING_S)
        self._given: list[Tensor] = [torch.empty(0)] * ranks
        self.meetings = 0

    def exchange(self, rank: int, own: Tensor) -> list[Tensor]:
        self._given[rank] = own.clone()  # the rank may go on and write over it, while others read
        if self._barrier.wait() == 0:
            self.meetings += 1
        found = list(self._given)
        self._barrier.wait()
        return found

    def waiting(self) -> int:
        """Returns the number of ranks that wait for the others."""
        return self._barrier.n_waiting

    def abort(self) -> None:
        self._barrier.abort()


class ThreadCollective(NoSharedBuffers):
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting = meeting
        self._rank = rank

    def all_reduce(self, own: Tensor) -> Tensor:
        return tree_sum(self._meeting.exchange(self._rank, own)).clone()

    def all_gather(self, own: Tensor, widths: Sequence[int]) -> Tensor:
        parts = self._meeting.exchange(self._rank, own)
        assert [part.shape[1] for part in parts] == list(widths)
        return torch.cat(parts, 1)

    def broadcast(self, tensor: Tensor) -> Tensor:
        return self._meeting.exchange(self._rank, tensor)[0].clone()

    def barrier(self) -> None:
        self._meeting.exchange(self._rank, torch.empty(0))


def on_ranks(ranks: int, work: Callable[[RankGroup], T], meeting: Meeting | None = None) -> list[T]:
    """Does the work on each rank, in a thread of its own; returns the results by rank."""
    meeting = meeting or Meeting(ranks)

    def of_rank(rank: int) -> T:
        try:
            return work(RankGroup(Shard(rank, ranks), ThreadCollective(meeting, rank)))
        except BaseException:
            meeting.abort()
            raise

    return in_threads(ranks, of_rank)


def in_threads(ranks: int, work: Callable[[int], T]) -> list[T]:
    with ThreadPoolExecutor(ranks) as threads:
        return [future.result() for future in [threads.submit(work, rank) for rank in range(ranks)]]


def over_shared_memory(ranks: int, work: Callable[[RankGroup], T]) -> list[T]:
    """Does the same by the collective that ranks in processes have."""
    wires = make_wires(ranks)

    def of_rank(rank: int) -> T:
        shard = Shard(rank, ranks)
        collective = SharedMemoryCollective(shard, wires[rank], MEETING_S)
        try:
            return work(RankGroup(shard, collective))
        finally:
            collective.close()

    return in_threads(ranks, of_rank)
