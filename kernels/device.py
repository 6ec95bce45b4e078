"""Device properties that kernel launches depend on."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from kernels.shape_cache import forget_shapes

INTERPRETER_PROCESSORS = 4
"""Processor count of Triton's interpreter, chosen so that it splits work as a device does."""


@cache
def processors(device: torch.device) -> int:
    """Counts the device's processors: streaming multiprocessors, in NVIDIA's words."""
    if device.type != "cuda":
        return INTERPRETER_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


WARP_GROUP_MAJORS = (9, 10, 11)
"""Major compute capabilities whose tensor cores take operands from shared memory: warp group products on Hopper, and
the products of data center Blackwell. That leaves registers to larger tiles; other devices keep operands in
registers."""
FP8_CAPABILITY = (8, 9)
HOPPER_MAJOR = 9
DEFAULT_CAPABILITY = (9, 0)
_assumed: list[tuple[int, int]] = [DEFAULT_CAPABILITY]
"""Compute capabilities assumed for devices without one, such as the interpreter; the innermost is last."""


def multiplies_by_groups(device: torch.device) -> bool:
    """Returns whether the device's products leave registers to larger tiles: see `WARP_GROUP_MAJORS`."""
    return _capability(device)[0] in WARP_GROUP_MAJORS


def is_hopper(device: torch.device) -> bool:
    return _capability(device)[0] == HOPPER_MAJOR


def converts_fp8(device: torch.device) -> bool:
    return _capability(device) >= FP8_CAPABILITY


@contextmanager
def assumed(major: int, minor: int) -> Iterator[None]:
    """Assumes this compute capability for tensors without a GPU while the context is open."""
    before = _assumed[-1]
    _assumed.append((major, minor))
    if _assumed[-1] != before:
        forget_shapes()
    try:
        yield
    finally:
        if _assumed.pop() != before:
            forget_shapes()


def _capability(device: torch.device) -> tuple[int, int]:
    return _of_gpu(device) if device.type == "cuda" else _assumed[-1]


@cache
def _of_gpu(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
