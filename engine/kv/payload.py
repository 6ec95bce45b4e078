"""Copies bytes that arrive in frames of any sizes into memory, or takes them as one tensor."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from infra.process.unlocked_copy import copy_bytes

Payload = Sequence[memoryview | bytes]


def size_of(payload: Payload) -> int:
    return sum(memoryview(part).nbytes for part in payload)


def scatter(targets: Sequence[memoryview], parts: Payload) -> None:
    """Copies the concatenation of `parts` into the concatenation of `targets`; both have the same total size."""
    waiting: Any = iter(targets)
    target = next(waiting, None)
    for part in parts:
        rest = memoryview(part).cast("B")
        while rest.nbytes:
            assert target is not None
            count = min(rest.nbytes, target.nbytes)
            copy_bytes(target[:count], rest[:count])
            rest, target = rest[count:], target[count:]
            if not target.nbytes:
                target = next(waiting, None)


def tensor_over(payload: memoryview | bytes) -> Tensor:
    """Makes a read-only tensor, uint8 `[bytes]`, over the same memory; `payload` must outlive it.

    PyTorch warns of each read-only buffer, so it is given the address instead.
    """
    array = np.frombuffer(payload, dtype=np.uint8)
    if not array.size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * array.size).from_address(array.ctypes.data), dtype=torch.uint8)


def view_of(tensor: Tensor) -> memoryview:
    """Returns the bytes of a contiguous tensor on the host; the view keeps the tensor alive."""
    array: Any = tensor.numpy()
    return memoryview(array).cast("B")
