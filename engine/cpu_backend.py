"""Which operators a CPU runs: the native ones where they compile and know the model's shapes, PyTorch's otherwise."""

import ctypes
import logging

import torch

from core.config import EngineConfig
from core.errors import ConfigError, NativeError
from engine.attention_native import unsupported
from engine.linear import NativeLinear
from engine.native.library import FORMATS, load

LOG = logging.getLogger(__name__)


def prove(native: ctypes.CDLL) -> None:
    """Multiplies whole numbers whose sums are exact: what this compiler made for this processor has to get them right.

    Raises `NativeError` where it does not: then PyTorch's operators serve.
    """
    rows, outputs, inputs = 39, 70, 227  # whole tiles, and rests of every kind
    x = (torch.arange(rows * inputs) % 7 - 3).view(rows, inputs)
    weight = (torch.arange(outputs * inputs) % 5 - 2).view(outputs, inputs)
    scales = torch.arange(outputs) % 3 + 1.0
    for dtype in FORMATS:
        exact = (x @ weight.T).float()
        for held, scale, expected in (
            (weight.to(dtype), None, exact),
            (weight.to(torch.int8), scales, exact * scales),
        ):
            layer = NativeLinear(native, held, None, scale, dtype)
            for count in (7, rows):
                if not torch.equal(layer(x[:count].to(dtype)), expected[:count].to(dtype)):
                    what = f"{dtype}" if scale is None else f"{dtype} with int8 weights"
                    raise NativeError(f"the native operators multiply {what} wrongly on this processor")


def choose(config: EngineConfig, device: torch.device, dtype: torch.dtype, head_dim: int) -> ctypes.CDLL | None:
    """The native operators, or None for PyTorch's: on other devices, as configured, or, with one line in the log, where
    `auto` finds that the native ones cannot be.

    Raises `ConfigError` where they were asked for by name and cannot be, and where int8 weights were, which are theirs.
    """
    quantized = config.quantization != "none"
    if quantized and (device.type != "cpu" or config.cpu_backend == "torch"):
        found = device.type if device.type != "cpu" else "torch's operators"
        raise ConfigError("quantization", config.quantization, f"only native operators on a CPU have it, not {found}")
    if device.type != "cpu" or config.cpu_backend == "torch":
        return None
    why = unsupported(dtype, head_dim, config.block_size)
    if not why:
        try:
            native = load()
            prove(native)
            return native
        except NativeError as error:
            why = str(error)
    if config.cpu_backend == "native":
        raise ConfigError("cpu_backend", "native", why)
    if quantized:
        raise ConfigError("quantization", config.quantization, f"it needs the native operators: {why}")
    LOG.info("torch operators, not native ones: %s", why)
    return None
