"""Copies bytes that come in frames, however they are cut, into memory, or takes them as one tensor."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Payload = Sequence[memoryview | bytes]


def size_of(payload: Payload) -> int:
    return sum(memoryview(part).nbytes for part in payload)


def scatter(targets: Sequence[memoryview], parts: Payload) -> None:
    """Copies `parts`, one after the other, into `targets`, one after the other; both have the same bytes in all."""
    waiting: Any = iter(targets)
    target = next(waiting, None)
    for part in parts:
        rest = memoryview(part).cast("B")
        while rest.nbytes:
            assert target is not None
            count = min(rest.nbytes, target.nbytes)
            target[:count] = rest[:count]
            rest, target = rest[count:], target[count:]
            if not target.nbytes:
                target = next(waiting, None)


def joined(payload: Payload) -> memoryview | bytes:
    """Returns all frames as one: itself where it is one, which is what a block's bytes mostly come in."""
    return payload[0] if len(payload) == 1 else b"".join(payload)


def tensor_over(payload: memoryview | bytes) -> Tensor:
    """Makes a tensor, uint8 `[bytes]`, over the same memory, to be read only, and only as long as `payload` lives.

    PyTorch warns of each frame that may not be written, so it is given the address.
    """
    array = np.frombuffer(payload, dtype=np.uint8)
    if not array.size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * array.size).from_address(array.ctypes.data), dtype=torch.uint8)


def view_of(tensor: Tensor) -> memoryview:
    """Returns the bytes of a contiguous tensor on the host; the view keeps the tensor alive."""
    array: Any = tensor.numpy()
    return memoryview(array).cast("B")
