"""Chooses device and dtype of the model, and turns device errors into sentences."""

import logging
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contracts.errors import ConfigError, DeviceError, DeviceMemoryError

LOG = logging.getLogger(__name__)

DTYPES_BY_NAME = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
AMPERE_CAPABILITY = (8, 0)
"""First compute capability with bf16 products. PyTorch reports support on older GPUs, but emulates it."""
MEMORY_HINT = "a lower --gpu-memory-utilization or --max-batch-tokens leaves more to steps"
TENSOR_FORMATS = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}
ALIGNED_BYTES = 16
"""Triton compiles a kernel for each alignment of its arguments, perhaps during a request."""
BF16_MULTIPLIED = "the processor multiplies bf16"
BF16_WIDENED = "native operators widen it as fast as they read it, or multiply it"
BF16_EMULATED = "the processor has no products of bf16, and would emulate them"
DEVICE_ERROR_PREFIXES = ("CUDA", "Triton Error", "cuBLAS", "CUBLAS")
"""Prefixes of error messages of the libraries below PyTorch."""


def choose_device(name: str) -> torch.device:
    """Finds the device that `auto`, `cpu`, `cuda` or `cuda:N` names. Raises `ConfigError` if it is not there."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ConfigError("device", name, "PyTorch finds no usable NVIDIA GPU here; use cpu or auto")
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise ConfigError("device", name, f"there are {torch.cuda.device_count()} GPUs, numbered from 0")
    return torch.device("cuda", index)


def use_device(device: torch.device) -> None:
    """Makes a GPU the calling thread's current device; every thread that uses CUDA calls it first.

    A thread's pinned memory, events and streams belong to its current device, by default GPU 0, where a worker of
    another GPU would create a context of hundreds of MiB. Also disables cuDNN in PyTorch's fused attention: cuDNN makes
    a plan for every new pair of query and key lengths, which takes tenths of a second, and almost every chunk has a new
    pair.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    if device.type == "cuda":
        torch.cuda.set_device(device)


def device_label(device: torch.device, environment: Mapping[str, str] = os.environ) -> str:
    """Returns a device's label, with its entry in CUDA_VISIBLE_DEVICES if that renumbers the GPUs."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if device.type != "cuda" or not visible:
        return str(device)
    return f"{device} (GPU {visible.split(',')[device.index or 0].strip()})"


def older_than_ampere(device: torch.device) -> str:
    """Returns the name of a GPU older than Ampere, which has no bf16 products and too few registers; '' for others."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) >= AMPERE_CAPABILITY:
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{device} ({torch.cuda.get_device_name(device)}, sm_{major}{minor})"


def choose_dtype(name: str, device: torch.device, widened: bool = False) -> torch.dtype:
    """Returns the dtype for `fp32`, `bf16` or `fp16`; for `auto`, the dtype that the hardware multiplies fastest.

    On CUDA that is bf16, or fp16 on GPUs older than Ampere, which lack bf16; on a CPU bf16 if the CPU multiplies bf16
    or native operators widen it in registers (`widened`), else fp32. Raises `ConfigError` for bf16 on a GPU without
    bf16.
    """
    old = older_than_ampere(device)
    if name == "bf16" and old:
        raise ConfigError("dtype", name, f"{old} has no bf16; use fp16, fp32 or auto")
    if name != "auto":
        return DTYPES_BY_NAME[name]
    if device.type == "cuda":
        return torch.float16 if old else torch.bfloat16
    multiplied = cpu_multiplies_bf16()
    # Products of 135M with AVX2, in turns: bf16, half the bytes, is 1.8 times as fast for a row, 1.2 for 8, 1 for 256.
    dtype = torch.bfloat16 if multiplied or (widened and cpu_widens_bf16()) else torch.float32
    how = BF16_MULTIPLIED if multiplied else BF16_WIDENED if dtype == torch.bfloat16 else BF16_EMULATED
    LOG.info("%s is the faster format here: %s", dtype_name(dtype), how)
    return dtype


def cpu_widens_bf16() -> bool:
    """Returns whether this CPU has AVX2 or is an ARM CPU: native operators widen bf16 as fast as they read it."""
    return platform.machine() == "aarch64" or bool(getattr(torch.cpu, "_is_avx2_supported", lambda: False)())


def cpu_multiplies_bf16() -> bool:
    """Returns whether this CPU has AVX-512 bf16 or AMX; PyTorch's operators emulate bf16 on others."""
    return any(
        bool(getattr(torch.cpu, probe, lambda: False)())
        for probe in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    )


def dtype_name(dtype: torch.dtype) -> str:
    return next(name for name, value in DTYPES_BY_NAME.items() if value == dtype)


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """Copies an array to CUDA by way of pinned memory, so that the host does not wait; on a CPU it is shared."""
    tensor: Tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        tensor = tensor.pin_memory()  # PyTorch keeps and reuses it once it was copied
    return tensor.to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """Copies a tensor from CUDA to pinned memory, without a wait; on a CPU it is shared."""
    if tensor.device.type != "cuda":
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


def event_on(device: torch.device) -> torch.cuda.Event | None:
    """Records an event on the current stream; None on a CPU, where everything launched is done."""
    if device.type != "cuda":
        return None
    cuda: Any = torch.cuda
    event: torch.cuda.Event = cuda.Event()
    event.record()
    return event


def to_device_together(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Copies arrays of any dtypes in one transfer; each begins at a multiple of `ALIGNED_BYTES` bytes.

    Nothing is copied if all are empty.
    """
    ends = list(accumulate(-(-array.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES for array in arrays))
    packed: Any = np.empty(ends[-1], np.uint8)
    begins = [0, *ends]
    for array, begin in zip(arrays, begins, strict=False):
        if array.size:
            packed[begin : begin + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    on_device = to_device(packed, device) if len(packed) else None
    tensors = []
    for array, begin in zip(arrays, begins, strict=False):
        format = TENSOR_FORMATS[array.dtype]
        if on_device is None or not array.size:
            tensors.append(torch.empty(array.shape, dtype=format, device=device))
        else:
            tensors.append(on_device[begin : begin + array.nbytes].view(format).view(array.shape))
    return tensors


@contextmanager
def device_errors() -> Iterator[None]:
    """Turns a GPU's errors during steps into one sentence; afterwards the device's memory is unusable.

    Raises `DeviceError` with the first line of the error. Baton's own errors pass unchanged.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceMemoryError(f"{_first_line(error)}; {MEMORY_HINT}") from error
    except torch.AcceleratorError as error:
        raise DeviceError(_first_line(error)) from error
    except subprocess.CalledProcessError as error:
        raise DeviceError(f"Triton cannot launch: {compiler_problem(error)}") from error
    except RuntimeError as error:
        if not str(error).startswith(DEVICE_ERROR_PREFIXES):
            raise
        raise DeviceError(_first_line(error)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "triton":  # its classes are known only where it is installed
            raise
        raise DeviceError(f"Triton: {_first_line(error)}; --cuda-backend torch needs no such kernel") from error


def compiler_problem(error: subprocess.CalledProcessError) -> str:
    """Returns a clause with the reason why the host's compiler could not build Triton's launcher."""
    scheme = sysconfig.get_default_scheme()
    include = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]  # as Triton asks
    if Path(include, "Python.h").exists():
        return f"{Path(error.cmd[0]).name} ended with status {error.returncode}, and says above why"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"Python's headers are not installed: there is no {include}/Python.h;"
        f" Debian's package is python{version}-dev, Fedora's python3-devel"
    )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
