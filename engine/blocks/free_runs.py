"""The free blocks of a pool as runs of neighbours, because neighbouring blocks move in one transfer.

A list of single blocks would degrade: every allocation cuts runs apart, and nothing joins them again. Here a freed
block is joined with its free neighbours (boundary tags: Knuth, The Art of Computer Programming 1, 2.5), and runs are
found by size class (powers of two), so that taking and freeing a run are O(1) whatever the size of the pool.
"""

from collections import OrderedDict
from collections.abc import Iterator


class FreeRuns:
    """Free blocks as maximal runs: no two runs touch."""

    def __init__(self, first: int, count: int) -> None:
        self.count = 0  # free blocks
        self._length: dict[int, int] = {}  # first block of a run -> blocks in it
        self._first: dict[int, int] = {}  # last block of a run -> its first
        # Class k: runs of 2^k … 2^(k+1) - 1 blocks. A dict would search its first run among the places of removed ones.
        self._classes: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(count.bit_length())]
        self._occupied = 0  # bit k: class k has a run
        self._insert(first, count)

    def take(self, count: int, after: int | None = None) -> list[int]:
        """Takes `count` blocks in few ascending runs (not minimal), preferably starting after block `after`."""
        assert 0 <= count <= self.count
        taken: list[int] = []
        if count and after is not None and after + 1 in self._length:
            taken += self._cut(after + 1, count)
        while len(taken) < count:
            missing = count - len(taken)
            taken += self._cut(self._fitting(missing), missing)
        return taken

    def put(self, first: int, count: int) -> None:
        """Frees the run `first` … `first + count - 1`."""
        before = self._first.get(first - 1)
        if before is not None:
            count += self._remove(before)
            first = before
        if first + count in self._length:
            count += self._remove(first + count)
        self._insert(first, count)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yields (first block, blocks) of every run, ascending."""
        return iter(sorted(self._length.items()))

    def _fitting(self, count: int) -> int:
        """Finds a run of the smallest class whose every run has `count` blocks, else one of the largest class."""
        sufficient = self._occupied >> (count - 1).bit_length() << (count - 1).bit_length()
        size = (sufficient & -sufficient if sufficient else self._occupied).bit_length() - 1
        return next(iter(self._classes[size]))

    def _cut(self, first: int, count: int) -> range:
        length = self._remove(first)
        cut = min(length, count)
        if cut < length:
            self._insert(first + cut, length - cut)
        return range(first, first + cut)

    def _insert(self, first: int, length: int) -> None:
        size = length.bit_length() - 1
        self._length[first] = length
        self._first[first + length - 1] = first
        self._classes[size][first] = None
        self._occupied |= 1 << size
        self.count += length

    def _remove(self, first: int) -> int:
        length = self._length.pop(first)
        size = length.bit_length() - 1
        del self._first[first + length - 1]
        del self._classes[size][first]
        if not self._classes[size]:
            self._occupied &= ~(1 << size)
        self.count -= length
        return length
