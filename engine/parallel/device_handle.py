"""A tensor in the memory of a GPU that another process of this host may read and write (`cudaIpcOpenMemHandle`).

The process that opens it needs a way from its own GPU to the memory (NVLink, or PCIe with peer access), and need not
see the other GPU: https://docs.nvidia.com/cuda/cuda-runtime-api, "Device Management".
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from contracts.errors import RankError


class DeviceHandle(Struct, frozen=True):
    """The storage of a contiguous tensor, as `torch.UntypedStorage` shares it."""

    allocation: bytes
    size: int  # bytes
    offset: int  # bytes, in the allocation
    counter: bytes  # name of the counter by which the owner knows that nobody reads the memory any more
    counter_offset: int
    event: bytes  # of the owner's stream
    waits: bool  # whether the reader has to wait for the event


def handle_of(tensor: Tensor) -> DeviceHandle:
    """Returns the handle of a tensor that has a storage of its own, on a GPU.

    Raises `RankError` if the system cannot share it.
    """
    untyped: Any = tensor.untyped_storage()
    try:
        _, *values = untyped._share_cuda_()
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise RankError(f"memory of {tensor.device} cannot be shared with another process: {why}") from error
    return DeviceHandle(*values)


def opened(handle: DeviceHandle, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Opens another process's tensor of this shape for kernels and copies on `device`.

    Raises `RankError` if the GPU has no way to the memory, or the tensor has another size.
    """
    if handle.size < math.prod(shape) * dtype.itemsize:
        raise RankError(f"another process's KV pool has {handle.size} bytes, too few for {list(shape)} values")
    storages: Any = torch.UntypedStorage
    values = (handle.allocation, handle.size, handle.offset, handle.counter, handle.counter_offset)
    try:
        storage = storages._new_shared_cuda(device.index or 0, *values, handle.event, handle.waits)
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise RankError(f"{device} has no way to the memory of another process's GPU: {why}") from error
    made = torch.empty(0, dtype=dtype, device=device)
    return made.set_(storage, 0, tuple(shape), torch.empty(tuple(shape), device="meta").stride())
