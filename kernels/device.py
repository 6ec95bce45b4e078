"""Knows what a kernel's launch depends on beside its tensors: the device."""

from functools import cache

import torch

INTERPRETED = 4
"""Processors that Triton's interpreter is said to have, so that it splits work as a device does."""


@cache
def processors(device: torch.device) -> int:
    """Counts the device's processors: streaming multiprocessors, in NVIDIA's words."""
    if device.type != "cuda":
        return INTERPRETED
    return torch.cuda.get_device_properties(device).multi_processor_count
