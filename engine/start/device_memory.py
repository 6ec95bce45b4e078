"""Reads what a GPU's memory is used for, and says how much of it is left to one worker's KV blocks."""

from dataclasses import dataclass

import torch

CUDA_CONTEXT_BYTES = 512 << 20
"""Bytes that a process holds on a GPU beside PyTorch's tensors: the driver's context, compiled kernels, cuBLAS."""
HEADROOM_SHARE = 1 / 32
"""Share of a GPU that no pool takes: steps that are recorded later, kernels loaded later, what lies between tensors."""


@dataclass(frozen=True)
class DeviceMemory:
    """Holds the figures of one moment, in bytes: the device's, and of PyTorch in this process."""

    total: int
    free: int  # nobody's
    held: int  # by this process's tensors
    peak: int  # the most that they have held

    def own(self) -> int:
        """Returns what this process needs beside its KV blocks. What others hold is no use of its own."""
        return max(self.peak, self.held) + CUDA_CONTEXT_BYTES

    def room(self) -> int:
        """Returns what could be taken for KV blocks, whoever else is there: steps need their peak again."""
        return max(0, self.free - (max(self.peak, self.held) - self.held) - int(self.total * HEADROOM_SHARE))

    def spare(self, utilization: float) -> int:
        """Returns what is left to KV blocks of this worker's share of the device, and is there."""
        return max(0, min(int(self.total * utilization) - self.own(), self.room()))


def device_memory(device: torch.device) -> DeviceMemory:
    """Reads the figures, once PyTorch has given back what it keeps beyond its tensors."""
    held, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, free, held, peak)
