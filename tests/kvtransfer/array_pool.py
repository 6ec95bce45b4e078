"""Keeps a pool in numpy arrays, one per layer, as the CPU engine does: reads are views, writes are one copy."""

import os
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from contracts.kinds import Codec
from contracts.kv.spec import KVSpec, PayloadConversion
from infra.memory.shared_mapping import map_shared, shared_memory
from kvtransfer.memory import KVDevices


class ArrayPool:
    """Is a `KVMemory` whose layers have the shape [blocks, block_bytes], uint8, in memory that may be shared."""

    def __init__(self, spec: KVSpec, blocks: int, seed: int | None = None, is_shared: bool = False) -> None:
        sizes = [len(group.layers) * blocks * group.block_bytes for group in spec.groups]
        self.counts = (blocks,) * len(sizes)
        self.descriptors = tuple(shared_memory("test-pool", size) for size in sizes if is_shared)
        weakref.finalize(self, _close_all, self.descriptors)
        self.arrays: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}
        self.writes = 0  # blocks that were written
        self.payloads = 0  # payloads that were written
        for at, group in enumerate(spec.groups):
            memory = np.zeros(sizes[at], np.uint8)
            if is_shared:
                memory = np.frombuffer(map_shared(self.descriptors[at], sizes[at]), np.uint8)
            if seed is not None:
                memory[:] = _random_bytes(seed + at, sizes[at])
            for layer, array in zip(group.layers, memory.reshape(-1, blocks, group.block_bytes), strict=True):
                self.arrays[at, layer] = array

    devices: KVDevices | None = None

    def ready(self, group: int, layer: int, blocks: Sequence[int]) -> bool:
        return True

    def begin_read(
        self, group: int, layer: int, blocks: Sequence[int], codec: Codec = "none"
    ) -> Callable[[], list[memoryview]]:
        return partial(self.read, group, layer, list(blocks), codec)

    def read(self, group: int, layer: int, blocks: Sequence[int], codec: Codec = "none") -> list[memoryview]:
        assert codec == "none", "bytes are not numbers"
        array = self.arrays[group, layer]
        return [array[blocks[start] : blocks[end - 1] + 1].reshape(-1).data for start, end in pairwise(_runs(blocks))]

    def landed(self, group: int, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        self.writes += len(blocks)
        self.payloads += 1
        return self.read(group, layer, blocks)

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Sequence[memoryview | bytes]) -> None:
        runs = iter(self.read(group, layer, blocks))
        run = next(runs)
        for frame in payload:
            rest = memoryview(frame)
            while rest:
                run = run or next(runs)
                count = min(len(rest), len(run))
                run[:count] = rest[:count]
                rest, run = rest[count:], run[count:]
        self.writes += len(blocks)
        self.payloads += 1

    def convert(self, piece: PayloadConversion, payload: Sequence[memoryview | bytes]) -> None:
        raise AssertionError("bytes are not numbers")


@lru_cache(maxsize=2)
def _random_bytes(seed: int, size: int) -> npt.NDArray[np.uint8]:
    """Most pools have the same, and to draw them takes longer than many a test."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def _close_all(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)


def _runs(blocks: Sequence[int]) -> list[int]:
    """Finds where runs of adjacent blocks begin, and the end of the last."""
    return [0, *(at for at in range(1, len(blocks)) if blocks[at] != blocks[at - 1] + 1), len(blocks)]
