"""Memory of an emulated kernel: tensors with their bounds, and shared memory that notices races between warps."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
POISON = 0xCD
"""Fills shared memory that is not written or still in flight: as bf16 -4.3e8, which no comparison overlooks."""


class Fault(Exception):
    """An access that a device may answer with a wrong value, or not at all."""


@dataclass(frozen=True)
class Accessor:
    """A warp that makes an access. `blocks` and `barriers`: each lane's block in the launch, and barriers passed."""

    blocks: Places
    warp: int
    barriers: Places


WARP_BITS = 6
SEVERAL_WARPS = (1 << WARP_BITS) - 1
SEVERAL_BLOCKS = -1
NOBODY = 0


class _Uses:
    """The last use of each byte: by which block and warp, and between which barriers of the block."""

    def __init__(self, size: int) -> None:
        self.users, self.barriers = np.zeros(size, np.int64), np.zeros(size, np.int64)

    def conflict(self, at: Places, by: Accessor) -> npt.NDArray[np.bool_]:
        """Returns for each byte whether its last use was in no order with this access."""
        users, blocks = self.users[at], by.blocks[:, None]
        same_block = users >> WARP_BITS == blocks + 1
        ordered = same_block & ((users & SEVERAL_WARPS == by.warp) | (self.barriers[at] < by.barriers[:, None]))
        return np.asarray((users != NOBODY) & ~ordered)

    def note(self, at: Places, by: Accessor) -> None:
        users = self.users[at]
        several_blocks = (users != NOBODY) & (users >> WARP_BITS != by.blocks[:, None] + 1)
        several_warps = self.conflict(at, by) & ~several_blocks
        warps = np.where(several_warps, SEVERAL_WARPS, by.warp)
        own = ((by.blocks[:, None] + 1) << WARP_BITS) | warps
        own = np.where(several_blocks, SEVERAL_BLOCKS, own)
        self.users[at] = own
        self.users[at[self.users[at] != own]] = SEVERAL_BLOCKS  # blocks that use a byte at once
        self.barriers[at] = by.barriers[:, None]


class GlobalMemory:
    """The bytes of tensors on the CPU, by their real addresses.

    Blocks of a launch run in no order, nor do warps of a block between two barriers. So the bytes that a warp changes
    may be used by no other block, and by no other warp before the next barrier. `synchronized` turns this check off,
    for kernels that order their blocks by atomics.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], synchronized: bool = False) -> None:
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
        regions = sorted((start, size) for start, size in storages.items() if size)
        self._starts = np.array([start for start, _ in regions], np.int64)
        self._ends = np.array([start + size for start, size in regions], np.int64)
        self._bytes = [np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start)) for start, size in regions]
        self._reads, self._writes = ([_Uses(size) for _, size in regions] for _ in range(2))
        self._synchronized = synchronized

    def load(self, addresses: Places, count: int, by: Accessor) -> Bytes:
        """Returns [addresses, count] bytes. Raises Fault out of bounds, where misaligned, and in a race."""
        found = np.empty((len(addresses), count), np.uint8)
        for region, chosen, at in self._parts(addresses, count):
            user = Accessor(by.blocks[chosen], by.warp, by.barriers[chosen])
            if not self._synchronized:
                if self._writes[region].conflict(at, user).any():
                    raise Fault("race: reads memory that another warp or block writes")
                self._reads[region].note(at, user)
            found[chosen] = self._bytes[region][at]
        return found

    def store(self, addresses: Places, values: Bytes, by: Accessor) -> None:
        for region, chosen, at in self._parts(addresses, values.shape[1]):
            user, given = Accessor(by.blocks[chosen], by.warp, by.barriers[chosen]), values[chosen]
            if not self._synchronized:
                changes = self._bytes[region][at] != given
                used = self._reads[region].conflict(at, user) | self._writes[region].conflict(at, user)
                if (used & changes).any():
                    raise Fault("race: changes memory that another warp or block uses")
                self._writes[region].note(at, user)
            self._bytes[region][at] = given
            _not_overwritten(self._bytes[region][at], given)

    def _parts(self, addresses: Places, count: int) -> Iterator[tuple[int, npt.NDArray[np.bool_], Places]]:
        """Yields each tensor that is accessed, by which addresses, and the bytes within it as [addresses, count]."""
        if (addresses % count).any():
            raise Fault(f"misaligned access of {count} bytes")
        regions = np.searchsorted(self._starts, addresses, side="right") - 1
        outside = regions < 0
        if not outside.any():
            outside = addresses + count > self._ends[regions]
        if outside.any():
            raise Fault(f"{int(outside.sum())} accesses of {count} bytes out of the bounds of the tensors")
        for region in np.unique(regions):
            chosen = regions == region
            yield int(region), chosen, (addresses[chosen] - self._starts[region])[:, None] + np.arange(count)


def _not_overwritten(found: Bytes, given: Bytes) -> None:
    if (found != given).any():
        raise Fault("race: lanes write other values to the same place at once")


@dataclass
class CopyInFlight:
    """A `cp.async` of some lanes: its bytes land when the lane waits for the group that it belongs to."""

    lanes: Places
    groups: Places
    ctas: Places
    starts: Places
    values: Bytes


@dataclass
class SharedMemory:
    """Shared memory of several blocks, each with `size` bytes.

    Between two barriers the bytes that a warp writes may be read by this warp alone, and bytes that another warp has
    read may not change: otherwise the result depends on which warp is faster. Bytes of a `cp.async` are poison until
    the lane has waited for them.
    """

    ctas: int
    size: int
    bytes: Bytes = field(init=False)
    _readers: npt.NDArray[np.uint32] = field(init=False)
    """A bit for each warp that read the byte since the block's last barrier."""
    _writers: npt.NDArray[np.uint32] = field(init=False)
    _in_flight: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.ctas, self.size)
        self.bytes = np.full(shape, POISON, np.uint8)
        self._readers, self._writers = np.zeros(shape, np.uint32), np.zeros(shape, np.uint32)
        self._in_flight = np.zeros(shape, bool)

    def load(self, ctas: Places, starts: Places, count: int, warp: int, alignment: int = 0) -> Bytes:
        at = self._at(ctas, starts, count, alignment or count)
        self._not_in_flight(at)
        bit = np.uint32(1 << warp)
        writers = self._writers[at]
        if ((writers != 0) & (writers & bit == 0)).any():
            raise Fault("race: a warp reads shared memory that another warp wrote since the last barrier")
        self._readers[at] |= bit
        return self.bytes[at]

    def store(self, ctas: Places, starts: Places, values: Bytes, warp: int, landing: bool = False) -> None:
        count = values.shape[1]
        at = self._at(ctas, starts, count, count)
        if landing:
            self._in_flight[at] = False
        else:
            self._not_in_flight(at)
            self._not_racing(at, warp, self.bytes[at] != values)
        self._writers[at] |= np.uint32(1 << warp)
        self.bytes[at] = values
        _not_overwritten(self.bytes[at], values)

    def poison(self, ctas: Places, starts: Places, count: int, warp: int) -> None:
        """Begins a copy into these bytes."""
        at = self._at(ctas, starts, count, count)
        self._not_in_flight(at)
        self._not_racing(at, warp, np.ones((len(starts), count), bool))
        self._in_flight[at] = True
        self.bytes[at] = POISON

    def pass_barrier(self, ctas: Places) -> None:
        self._readers[ctas] = 0
        self._writers[ctas] = 0

    def _at(self, ctas: Places, starts: Places, count: int, alignment: int) -> tuple[Places, Places]:
        if (starts < 0).any() or (starts + count > self.size).any():
            raise Fault(f"shared memory out of its {self.size} bytes")
        if (starts % alignment).any():
            raise Fault(f"misaligned access of {count} bytes of shared memory")
        return ctas[:, None], starts[:, None] + np.arange(count)

    def _not_in_flight(self, at: tuple[Places, Places]) -> None:
        if self._in_flight[at].any():
            raise Fault("shared memory is used before its cp.async has been waited for")

    def _not_racing(self, at: tuple[Places, Places], warp: int, changes: npt.NDArray[np.bool_]) -> None:
        others = (self._readers[at] | self._writers[at]) & ~np.uint32(1 << warp)
        if ((others != 0) & changes).any():
            raise Fault("race: a warp changes shared memory that another warp used since the last barrier")
