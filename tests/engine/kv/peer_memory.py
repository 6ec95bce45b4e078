"""Lets pools on a simulated GPU be opened as those of another process, by handles that name their tensors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

import pytest
import torch
from torch import Tensor

from contracts.errors import RankError
from engine.parallel.device_handle import DeviceHandle

UNSHARED = "memory of cuda:0 cannot be shared with another process: operation not supported"
UNREACHED = "cuda:0 has no way to the memory of another process's GPU: peer access is not supported"


@contextmanager
def shared_on_device(*, shared: bool = True, reached: bool = True) -> Iterator[None]:
    """Inside, handles are of this process's tensors; `reached`: whether this GPU has a way to `shared` memory."""
    known: list[Tensor] = []

    def handle_of(tensor: Tensor) -> DeviceHandle:
        if not shared:
            raise RankError(UNSHARED)
        known.append(tensor)
        return DeviceHandle(b"", tensor.nbytes, len(known) - 1, b"", 0, b"", False)

    def opened(handle: DeviceHandle, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        if not reached:
            raise RankError(UNREACHED)
        assert handle.size == prod(shape) * dtype.itemsize
        return known[handle.offset].view(-1).view(dtype).view(*shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.kv.pool.handle_of", handle_of)
        patch.setattr("engine.kv.gpu.device_pools.opened", opened)
        yield
