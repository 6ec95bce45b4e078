"""Reads the memory use of a GPU, and computes the memory available for one worker's KV blocks."""

from dataclasses import dataclass

import torch

CUDA_CONTEXT_BYTES = 512 << 20
"""A process's memory on a GPU besides PyTorch's tensors: the driver's context, compiled kernels, cuBLAS."""
HEADROOM_SHARE = 1 / 32
"""Share of a GPU left free for steps recorded later, kernels loaded later, and fragmentation."""


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of the device and of this process, in bytes, at one moment."""

    total: int
    free: int
    held: int  # by this process's tensors
    peak: int  # maximum of `held` so far

    def own(self) -> int:
        return max(self.peak, self.held) + CUDA_CONTEXT_BYTES

    def room(self) -> int:
        """Returns the bytes that KV blocks could take now: steps will reach their peak again."""
        return max(0, self.free - (max(self.peak, self.held) - self.held) - int(self.total * HEADROOM_SHARE))

    def spare(self, utilization: float) -> int:
        """Returns the bytes for KV blocks within this worker's share of the device."""
        return max(0, min(int(self.total * utilization) - self.own(), self.room()))


def device_memory(device: torch.device) -> DeviceMemory:
    """Reads the memory after PyTorch has released its cache."""
    held, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, free, held, peak)
