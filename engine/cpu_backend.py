"""Which operators a CPU runs: the native ones where they compile and know the model's shapes, PyTorch's otherwise."""

import ctypes
import logging

import torch

from core.config import EngineConfig
from core.errors import ConfigError, NativeError
from engine.attention_native import unsupported
from engine.native.library import load

LOG = logging.getLogger(__name__)


def choose(config: EngineConfig, device: torch.device, dtype: torch.dtype, head_dim: int) -> ctypes.CDLL | None:
    """The native operators, or None for PyTorch's: on other devices, as configured, or, with one line in the log, where
    `auto` finds that the native ones cannot be.

    Raises `ConfigError` where they were asked for by name and cannot be.
    """
    if device.type != "cpu" or config.cpu_backend == "torch":
        return None
    why = unsupported(dtype, head_dim, config.block_size)
    if not why:
        try:
            return load()
        except NativeError as error:
            why = str(error)
    if config.cpu_backend == "native":
        raise ConfigError("cpu_backend", "native", why)
    LOG.info("torch operators, not native ones: %s", why)
    return None
