"""Where the model runs and in which number format: chosen once, named in one line."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.errors import ConfigError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(wanted: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N` as a device that is there. Raises `ConfigError` if it is not."""
    if wanted == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    device = torch.device(wanted)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ConfigError("device", wanted, "PyTorch finds no usable NVIDIA GPU here; use cpu or auto")
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise ConfigError("device", wanted, f"there are {torch.cuda.device_count()} GPUs, numbered from 0")
    return torch.device("cuda", index)


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """`fp32`, `bf16`, `fp16`, or for `auto` bf16 where the hardware multiplies it, else fp32."""
    if wanted != "auto":
        return DTYPES[wanted]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if cpu_multiplies_bf16() else torch.float32


def cpu_multiplies_bf16() -> bool:
    """True on CPUs with AVX-512 bf16 or AMX; others emulate bf16 and are faster in fp32."""
    return any(
        bool(getattr(torch.cpu, probe, lambda: False)())
        for probe in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    )


def dtype_name(dtype: torch.dtype) -> str:
    """The configuration's word for a number format."""
    return next(name for name, value in DTYPES.items() if value == dtype)


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """On CUDA by way of pinned memory, so that the host does not wait; on a CPU the array itself."""
    found: Any = torch.from_numpy(array)
    if device.type == "cuda":
        found = found.pin_memory().to(device, non_blocking=True)  # PyTorch keeps and reuses it once it was copied
    result: Tensor = found
    return result
