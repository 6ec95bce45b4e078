"""Knows what a kernel's launch depends on beside its tensors: the device."""

from collections.abc import Iterator
from contextlib import contextmanager
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


GROUPS = (9, 10, 11)
"""Major compute capabilities whose tensor cores take operands from shared memory: Hopper's products of warp groups, and
those of Blackwell in data centers. That leaves registers to larger tiles; other devices keep operands there."""
FIRST_FP8 = (8, 9)
HOPPER = 9
USUAL = (9, 0)
_assumed: list[tuple[int, int]] = [USUAL]
"""What devices without a compute capability, the interpreter among them, are taken for; the innermost is last."""


def multiplies_by_groups(device: torch.device) -> bool:
    """Tells whether the device's products leave registers to larger tiles: see `GROUPS`."""
    return _capability(device)[0] in GROUPS


def is_hopper(device: torch.device) -> bool:
    """Tells whether products of warp groups keep their sums in registers, as on Hopper alone."""
    return _capability(device)[0] == HOPPER


def converts_fp8(device: torch.device) -> bool:
    """Tells whether the device has instructions for e4m3, as GPUs from Ada and Hopper on (sm_89) do."""
    return _capability(device) >= FIRST_FP8


@contextmanager
def assumed(major: int, minor: int) -> Iterator[None]:
    """Takes tensors without a GPU for those of a GPU of this compute capability meanwhile, for which is compiled."""
    _assumed.append((major, minor))
    try:
        yield
    finally:
        _assumed.pop()


def _capability(device: torch.device) -> tuple[int, int]:
    return _of_gpu(device) if device.type == "cuda" else _assumed[-1]


@cache
def _of_gpu(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
