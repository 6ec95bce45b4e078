"""Keeps KV blocks evicted from the pool in the host's memory, pinned if there is a GPU, or in an unnamed file.

A slot holds one block of all layers of a group contiguously, `[layers, words]`, so that it moves in one transfer. The
scheduler knows which block is in which slot. Nothing of the tier survives the process: the memory is an anonymous
mapping, and the file has no name.
"""

import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contracts.errors import ConfigError
from contracts.kv.spec import KVGroup
from engine.kv.mover import WORD_DTYPE
from engine.kv.moves import runs


class HostTier:
    """Slots 0 … `slots` - 1 for blocks. Used by the engine's thread; on CUDA in the order of its stream."""

    def __init__(self, slots: int, group: KVGroup, device: torch.device, directory: str = "") -> None:
        """Allocates the memory of all slots, in a file if a `directory` is given.

        Raises `ConfigError` if there is not enough memory or the directory cannot be written.
        """
        assert slots > 0 and group.block_bytes % WORD_DTYPE.itemsize == 0
        self.slots = slots
        self.bytes = slots * group.layers_bytes()
        self._device = device
        memory = _file(directory, self.bytes) if directory else _anonymous(self.bytes)
        self._memory = torch.frombuffer(memory, dtype=WORD_DTYPE).view(
            slots, len(group.layers), -1
        )  # [slots, layers, words]
        self._pinned = device.type == "cuda" and not directory  # pinning a file would keep all of it in memory
        if self._pinned:
            _pin(self._memory)
            weakref.finalize(self, _unpin, self._memory).atexit = False

    def put(self, slots: Sequence[int], blocks: Tensor) -> None:
        """Fills `slots`, in order, from `blocks` `[slots, layers, words]` on the device.

        With pinned memory the copy is only enqueued. A file is written by the host: that waits for the device.
        """
        assert all(0 <= slot < self.slots for slot in slots), f"slots beyond the tier's {self.slots}"
        if self._device.type == "cuda" and not self._pinned:
            staging = torch.empty(blocks.shape, dtype=WORD_DTYPE, pin_memory=True)
            blocks = staging.copy_(blocks, non_blocking=True)
            torch.cuda.current_stream(self._device).synchronize()
        begin = 0
        for first, last in runs(slots):
            end = begin + last + 1 - first
            self._memory[first : last + 1].copy_(blocks[begin:end], non_blocking=self._pinned)
            begin = end

    def get(self, slots: Sequence[int]) -> Tensor:
        """Returns the blocks in `slots`, in order, as `[slots, layers, words]` on the device."""
        assert all(0 <= slot < self.slots for slot in slots), f"slots beyond the tier's {self.slots}"
        shape = (len(slots), *self._memory.shape[1:])
        staged = self._device.type == "cuda" and not self._pinned
        blocks = torch.empty(shape, dtype=WORD_DTYPE, pin_memory=True) if staged else self._empty(shape)
        begin = 0
        for first, last in runs(slots):
            end = begin + last + 1 - first
            blocks[begin:end].copy_(self._memory[first : last + 1], non_blocking=self._pinned)
            begin = end
        return blocks.to(self._device, non_blocking=True)

    def _empty(self, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=WORD_DTYPE, device=self._device)


def _anonymous(size: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise ConfigError("host_kv_memory", size, f"the system gives no such memory: {error.strerror}") from None


def _file(directory: str, size: int) -> mmap.mmap:
    """Maps an unnamed file, which disappears with its last mapping.

    Its disk space is allocated at once: if the disk were full later, the kernel would kill the process.
    """
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        why = f"no file of {size} bytes for KV blocks can be made there: {error.strerror}"
        raise ConfigError("host_kv_directory", directory, why) from None


def _pin(memory: Tensor) -> None:
    """Pins the memory as it is; torch's own pinned memory is rounded up to a power of two."""
    cuda: Any = torch.cuda
    size = memory.numel() * memory.element_size()
    error = int(cuda.cudart().cudaHostRegister(memory.data_ptr(), size, 0))
    if error:
        raise ConfigError("host_kv_memory", size, f"CUDA cannot pin so much memory (error {error}); lower it")


def _unpin(memory: Tensor) -> None:
    """Unpins the memory before it is unmapped; at the end of the process the system does it."""
    cuda: Any = torch.cuda
    cuda.synchronize()
    cuda.cudart().cudaHostUnregister(memory.data_ptr())
