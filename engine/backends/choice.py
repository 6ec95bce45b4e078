"""Chooses the backend that computes.

It is Triton's kernels on CUDA, from Ampere on, and on a CPU the native operators where they compile and know the
shapes. PyTorch's operators serve otherwise, and wherever they are asked for. All of them add adapters.
"""

import ctypes
import logging
import subprocess
from typing import Any

import torch

from contracts.errors import ConfigError, NativeError
from engine.backends.base import Backend
from engine.backends.native.attention import unsupported
from engine.backends.native.backend import NativeBackend
from engine.backends.native.compiling.prebuilt import may_load
from engine.backends.native.library import load
from engine.backends.native.linear_layers.linear import prove
from engine.backends.reference.backend import ReferenceBackend
from engine.device import compiler_problem, older_than_ampere
from engine.model.config import ModelConfig, TextModel
from infra.config.engine import EngineConfig

LOG = logging.getLogger(__name__)


def serves_natively(config: EngineConfig) -> bool:
    """Returns whether native operators will probably compute on a CPU, before the model is known."""
    return config.cpu_backend in ("auto", "native") and may_load()


def choose(config: EngineConfig, device: torch.device, dtype: torch.dtype, model: TextModel) -> Backend[Any, Any]:
    """Chooses a backend as configured.

    What `auto` finds missing costs one line in the log on a CPU and on a GPU older than the kernels, and is refused on
    other GPUs, where PyTorch's operators would be several times slower.

    Raises `ConfigError` where a backend was asked for by name and cannot be.
    """
    wanted = config.cpu_backend if device.type == "cpu" else config.cuda_backend
    ours = device.type == "cuda" or wanted == "triton"
    if config.activations != "auto" and not (ours and isinstance(model, ModelConfig)):
        why = "only Triton's kernels, on a GPU, quantize tokens or not, in models of our own families"
        raise ConfigError("activations", config.activations, f"{why}; leave it auto")
    old = older_than_ampere(device)
    if old and wanted == "triton":
        raise ConfigError("cuda_backend", wanted, f"{old} is older than Triton's kernels, which need sm_80; use auto")
    if old and wanted == "auto":
        LOG.warning("PyTorch's operators, not Triton's kernels: those need sm_80, and this is %s", old)
    if wanted == "torch" or old:
        return ReferenceBackend(device, dtype)
    if device.type == "cuda" or wanted == "triton":
        return _triton(config, device, dtype, model)
    native = _native(config, dtype, model)
    if native is None:
        return ReferenceBackend(device, dtype)
    return NativeBackend(native, dtype)


def _triton(config: EngineConfig, device: torch.device, dtype: torch.dtype, model: TextModel) -> Backend[Any, Any]:
    setting, value = ("cpu_backend", "triton") if device.type == "cpu" else ("cuda_backend", config.cuda_backend)
    try:
        import triton

        from engine.backends.triton import backend
    except ImportError as error:
        raise ConfigError(setting, value, f"Triton is not installed here ({error}); torch needs none") from None
    if device.type == "cpu" and not triton.knobs.runtime.interpret:
        raise ConfigError(setting, value, "a CPU has only Triton's interpreter: set TRITON_INTERPRET=1")
    if device.type == "cuda":
        try:  # it compiles a part of its own with the host's C compiler when it is first used
            triton.runtime.driver.active.get_current_target()
        except (RuntimeError, AssertionError, OSError) as error:
            why = f"Triton cannot start: {error}; torch's operators need no compiler"
            raise ConfigError(setting, value, why) from None
        except subprocess.CalledProcessError as error:
            why = f"Triton cannot start: {compiler_problem(error)}; torch's operators need neither"
            raise ConfigError(setting, value, why) from None
    why = backend.unsupported(model, dtype, config.block_size)
    if why:
        raise ConfigError(setting, value, f"{why}; torch's operators support it")
    return backend.TritonBackend(device, dtype, config.activations)


def _native(config: EngineConfig, dtype: torch.dtype, model: TextModel) -> ctypes.CDLL | None:
    why = unsupported(model, dtype, config.block_size)
    if not why:
        try:
            native = load()
            prove(native)
            return native
        except NativeError as error:
            why = str(error)
    if config.cpu_backend == "native":
        raise ConfigError("cpu_backend", "native", why)
    LOG.info("torch operators, not native ones: %s", why)
    return None
