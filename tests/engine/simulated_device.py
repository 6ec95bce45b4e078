"""Simulates a GPU's streams on a CPU, and finds accesses to memory that nothing puts in order.

What is simulated is order, not time: every stream, and the host, has a vector clock (Fidge, "Timestamps in
message-passing systems that preserve the partial ordering", 1988; torch.cuda._sanitizer does the same on a GPU). A
launch happens after what the host knows to be over; a recorded event carries its stream's clock to who waits for it.
Two accesses to one cell of memory, one of them a write, must be in order: else a device is free to run them in either,
however late or early each may be. Freed memory belongs to the stream that it was allocated on: what other streams still
do with it must be over by then, unless the allocator was told of them (`record_stream`).

`tests/engine/simulated_torch.py` runs code under test on it. A tensor given to `in_cells` is watched in cells of so
many bytes, every other one as a whole.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

CUDA = torch.device("cuda", 0)
HOST = "host"
ENGINE = "engine"
"""The current stream where nobody has chosen one."""

Clock = dict[str, int]


def joined(left: Clock, right: Clock) -> Clock:
    """Returns the clock of somebody who has waited for both: of each actor the later time."""
    return {each: max(left.get(each, 0), right.get(each, 0)) for each in {*left, *right}}


@dataclass
class Access:
    """The newest accesses to one cell: (actor, its time, what)."""

    written: tuple[str, int, str] | None = None
    read: dict[str, tuple[int, str]] = field(default_factory=dict)  # by actor


@dataclass
class Memory:
    """One allocation."""

    name: str
    alive: StorageWeakRef
    begin: int  # address
    size: int  # bytes
    owner: str  # stream that it was allocated on, or the host
    on_device: bool
    pinned: bool
    cell: int  # bytes
    cells: dict[int, Access] = field(default_factory=dict)
    recorded: set[str] = field(default_factory=set)  # streams that the allocator was told of


class SimulatedEvent:
    """See `torch.cuda.Event`. One that was not recorded holds nobody up."""

    def __init__(self, device: "SimulatedDevice", clock: Clock | None = None) -> None:
        self._device = device
        self.clock = clock or {}
        self._looks = 0

    def record(self, stream: "SimulatedStream | None" = None) -> None:
        self._device.recorded += 1
        self.clock = dict((stream or self._device.current).clock)

    def query(self) -> bool:
        """As late as it may be: it has passed only if the host knows that, or has looked often enough to learn it."""
        host = self._device.host
        if self._device.forgets("query"):
            return True
        self._looks += 1
        if all(host.get(actor, 0) >= time for actor, time in self.clock.items()):
            return True
        if self._looks < self._device.looks:
            return False
        self._device.host = joined(host, self.clock)
        return True

    def synchronize(self) -> None:
        self._device.waits += 1
        if not self._device.forgets("synchronize"):
            self._device.host = joined(self._device.host, self.clock)


class SimulatedStream:
    """See `torch.cuda.Stream`."""

    def __init__(self, device: "SimulatedDevice", name: str) -> None:
        self._device = device
        self.name = name
        self.clock: Clock = {name: 0}

    def wait_event(self, event: SimulatedEvent) -> None:
        if not self._device.forgets("wait_event"):
            self.clock = joined(self.clock, event.clock)

    def record_event(self, event: SimulatedEvent | None = None) -> SimulatedEvent:
        event = event or SimulatedEvent(self._device)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._device.waits += 1
        if not self._device.forgets("synchronize"):
            self._device.host = joined(self._device.host, self.clock)


class SimulatedDevice:
    """One GPU with its streams, and the host."""

    def __init__(self) -> None:
        self.host: Clock = {HOST: 0}
        self.streams = [SimulatedStream(self, ENGINE)]
        self.current = self.streams[0]
        self.looks: float = math.inf  # by which the host learns that an event has passed
        self.forgotten = ("", "")  # a kind of wait, and the function that it is left out of
        self.races: list[str] = []
        self.waits = 0  # of the host for the device
        self.recorded = 0  # events
        self._memory: dict[int, Memory] = {}  # by storage

    def forgets(self, kind: str) -> bool:
        """Whether whoever called, or whoever called that, leaves this wait out."""
        frame: Any = sys._getframe(2)
        return self.forgotten in [(kind, each.f_code.co_name) for each in (frame, frame.f_back)]

    # what the code under test calls ---------------------------------------------------------------------------------

    def make_stream(self, device: object = None, priority: int = 0) -> SimulatedStream:
        self.streams.append(SimulatedStream(self, f"stream {len(self.streams)}"))
        return self.streams[-1]

    def make_event(self, **options: bool) -> SimulatedEvent:
        return SimulatedEvent(self)

    @contextmanager
    def on(self, stream: SimulatedStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def synchronize(self, device: object = None) -> None:
        self.reclaim()
        for stream in self.streams:
            stream.synchronize()

    # memory ---------------------------------------------------------------------------------------------------------

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device."""
        found = self._memory.get(tensor.untyped_storage()._cdata)
        return found is not None and found.on_device

    def copies_from(self, tensor: Tensor) -> None:
        """Has the host wait where memory that is not pinned is copied to the device."""
        found = self._memory.get(tensor.untyped_storage()._cdata)
        if found is None or not (found.on_device or found.pinned):
            self.waits += 1

    def allocated(self, tensor: Tensor, name: str, *, on_device: bool, pinned: bool = False) -> None:
        """Watches a new tensor's memory, unless it is watched already."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._memory:
            return
        owner = self.current.name if on_device else HOST
        reference = StorageWeakRef(storage)
        size = max(1, storage.nbytes())
        begin = storage.data_ptr()
        self._memory[storage._cdata] = Memory(name, reference, begin, size, owner, on_device, pinned, size)

    def in_cells(self, tensor: Tensor, size: int, name: str) -> None:
        """Watches a tensor's memory in cells of `size` bytes."""
        memory = self._memory[tensor.untyped_storage()._cdata]
        so_far = memory.cells.get(0, Access())
        memory.cell, memory.name = size, name
        memory.cells = {cell: Access(so_far.written, dict(so_far.read)) for cell in range(-(-memory.size // size))}

    def record(self, tensor: Tensor, stream: SimulatedStream) -> None:
        """Tells the allocator that another stream uses this memory."""
        self._memory[tensor.untyped_storage()._cdata].recorded.add(stream.name)

    def reclaim(self) -> None:
        """Takes back memory whose tensors are gone, and looks whether anybody may still use it."""
        for key, memory in [*self._memory.items()]:
            if not memory.alive.expired():
                continue
            del self._memory[key]
            owner = next((stream.clock for stream in self.streams if stream.name == memory.owner), {})
            known = joined(owner, self.host)
            for access in memory.cells.values() if memory.on_device else ():
                found = [(actor, time, what) for actor, (time, what) in access.read.items()]
                found += [access.written] if access.written else []
                for actor, time, what in found:
                    if known.get(actor, 0) < time and actor not in memory.recorded:
                        self.races.append(f"{memory.name} is freed while {what} on {actor} may still use it")

    # accesses -------------------------------------------------------------------------------------------------------

    @contextmanager
    def launch(self) -> Iterator[None]:
        """Inside, one launch on the current stream makes its accesses."""
        self.reclaim()
        stream = self.current
        stream.clock = joined(stream.clock, self.host)
        stream.clock[stream.name] += 1
        yield

    def touch(self, tensor: Tensor, cells: Sequence[int] | None, what: str, *, write: bool, by_host: bool) -> None:
        """Notes an access to some of a watched tensor's cells; None: to all of its memory."""
        memory = self._memory.get(tensor.untyped_storage()._cdata)
        if memory is not None:
            for cell in range(-(-memory.size // memory.cell)) if cells is None else cells:
                self._touch(memory, cell, what, write=write, by_host=by_host)

    def touch_address(self, addresses: NDArray[np.uint64], what: str, *, write: bool) -> None:
        """Notes a kernel's accesses."""
        if not addresses.size:
            return
        low, high = int(addresses.min()), int(addresses.max())
        for memory in self._memory.values():
            if high < memory.begin or low >= memory.begin + memory.size:
                continue
            inside = addresses[(addresses >= memory.begin) & (addresses < memory.begin + memory.size)]
            for cell in np.unique((inside - np.uint64(memory.begin)) // np.uint64(memory.cell)).tolist():
                self._touch(memory, int(cell), what, write=write, by_host=False)

    def _touch(self, memory: Memory, cell: int, what: str, *, write: bool, by_host: bool) -> None:
        actor, clock = (HOST, self.host) if by_host else (self.current.name, self.current.clock)
        access = memory.cells.setdefault(cell, Access())
        before = [access.written] if access.written else []
        if write:
            before += [(reader, time, done) for reader, (time, done) in access.read.items()]
        for other, time, done in before:
            if clock.get(other, 0) < time:
                kind = "written" if write else "read"
                self.races.append(f"{memory.name}[{cell}] is {kind} by {what} on {actor}, unordered with {done}")
        if write:
            access.written, access.read = (actor, clock[actor], f"{what} on {actor}"), {}
        else:
            access.read[actor] = (clock[actor], f"{what} on {actor}")

    def cells_of(self, tensor: Tensor, index: Callable[[Tensor], Tensor] | None = None) -> list[int] | None:
        """The cells that a view covers, or those of its elements that `index` takes; None: all of its memory."""
        memory = self._memory.get(tensor.untyped_storage()._cdata)
        if memory is None or memory.cell >= memory.size:
            return None
        of_elements = torch.arange(memory.size // tensor.itemsize) * tensor.itemsize // memory.cell
        view = of_elements.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        found: list[int] = (view if index is None else index(view)).unique().tolist()
        return found
