"""What a GPU reports while steps run, as one named error: after it, nothing that the device holds can be used."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from core.errors import DeviceError, DeviceMemoryError

ROOM = "a lower --gpu-memory-utilization or --max-batch-tokens leaves more to steps"
PREFIXES = ("CUDA", "Triton Error", "cuBLAS", "CUBLAS")
"""What errors of libraries below PyTorch begin with."""


@contextmanager
def device_errors() -> Iterator[None]:
    """Raises `DeviceError` with the first line of what went wrong. An error of our own stays what it is."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceMemoryError(f"{_first_line(error)}; {ROOM}") from error
    except torch.AcceleratorError as error:
        raise DeviceError(_first_line(error)) from error
    except RuntimeError as error:
        if not str(error).startswith(PREFIXES):
            raise
        raise DeviceError(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
