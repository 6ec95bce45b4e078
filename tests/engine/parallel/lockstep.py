"""Two ranks on a simulated GPU each, in one process: one runs until it needs the other, and every sum orders both.

Each rank has a stream and a host of its own, which know of the other's work only by sums, gatherings, broadcasts and
meetings, and by the orders that rank 0 sends.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from engine.parallel.rank_group import NoSharedBuffers
from engine.parallel.sums import tree_sum
from tests.engine.simulated_device import HOST, Clock, SimulatedDevice, joined
from tests.engine.simulated_torch import Operators, Pretence

TURN_S = 60.0


class Lockstep:
    """Lets rank 1 run when rank 0 waits for it. `forgotten`: an operation that orders nothing."""

    def __init__(self, device: SimulatedDevice, forgotten: str = "") -> None:
        self._device = device
        self._forgotten = forgotten
        self._streams = [device.current, device.make_stream()]
        self._hosts: list[Clock] = [device.host, {HOST: 0}]
        self._turns = [threading.Semaphore(0), threading.Semaphore(0)]
        self._given: list[Tensor] = [torch.empty(0)] * 2
        self._orders: deque[Callable[[], None]] = deque()
        self._ends = False
        self._threads = ThreadPoolExecutor(1)
        self._running: Future[None] = self._threads.submit(self._follow)

    def order(self, work: Callable[[], None]) -> None:
        """Has rank 1 do this: its host knows then what rank 0's host knows."""
        self._hosts[1] = joined(self._hosts[1], self._device.host)
        self._orders.append(work)

    def as_rank_1(self, work: Callable[[], Any]) -> Any:
        """Does what needs no other rank on rank 1's stream, from rank 0's thread."""
        device = self._device
        before, device.current, device.host = (device.current, device.host), self._streams[1], self._hosts[1]
        try:
            return work()
        finally:
            self._hosts[1] = device.host
            device.current, device.host = before

    def close(self) -> None:
        """Lets rank 1 do what is left; raises what it has raised."""
        self._ends = True
        self._hand_over(0, waits=False)
        self._running.result(TURN_S)
        self._threads.shutdown()

    def exchange(self, rank: int, own: Tensor, name: str) -> list[Tensor]:
        """Returns both ranks' tensors, of which each rank has copies that are its own."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            self._given[rank] = own.clone()
        if rank == 0:
            self._hand_over(0)
            return list(self._given)
        found = list(self._given)
        for stream in self._streams:
            stream.clock[stream.name] += 1
        if name != self._forgotten:
            both = joined(self._streams[0].clock, self._streams[1].clock)
            for stream in self._streams:
                stream.clock = dict(both)
        self._hand_over(1)
        return found

    def _hand_over(self, rank: int, *, waits: bool = True) -> None:
        device, other = self._device, 1 - rank
        self._hosts[rank] = device.host
        device.current, device.host = self._streams[other], self._hosts[other]
        self._turns[other].release()
        if waits:
            self._await(rank)

    def _await(self, rank: int) -> None:
        while not self._turns[rank].acquire(timeout=0.1):
            if rank == 0 and self._running.done():
                self._running.result()
                raise AssertionError("rank 1 has ended, and rank 0 waits for it")

    def _follow(self) -> None:
        assert self._turns[1].acquire(timeout=TURN_S)
        with torch.inference_mode(), Operators(self._device), Pretence(self._device):
            while not self._ends or self._orders:
                while self._orders:
                    self._orders.popleft()()
                if not self._ends:
                    self._hand_over(1)


class LockstepCollective(NoSharedBuffers):
    """One rank's end."""

    def __init__(self, lockstep: Lockstep, rank: int) -> None:
        self._lockstep = lockstep
        self._rank = rank

    def all_reduce(self, own: Tensor) -> Tensor:
        return self._made(own, "sum", tree_sum)

    def all_gather(self, own: Tensor, widths: Sequence[int]) -> Tensor:
        return self._made(own, "gather", lambda given: torch.cat(list(given), 1))

    def broadcast(self, tensor: Tensor) -> Tensor:
        return self._made(tensor, "broadcast", lambda given: given[0])

    def barrier(self) -> None:
        self._lockstep.exchange(self._rank, torch.empty(0), "meet")

    def _made(self, own: Tensor, name: str, make: Callable[[Sequence[Tensor]], Tensor]) -> Tensor:
        given = self._lockstep.exchange(self._rank, own, name)
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            found = make(given)
        result = torch.empty(found.shape, dtype=found.dtype, device="cuda")
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            result.copy_(found)
        return result
