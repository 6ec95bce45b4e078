"""Refuses weights and KV that exceed this host's memory, before a service starts."""

import json
import os
import shutil
from pathlib import Path

from checkpoints.gguf.unpacking import GGUF_INDEX
from checkpoints.weight_sizes import least_bytes
from contracts.errors import ConfigError
from infra.config.engine import EngineOptions
from infra.config.operators import OPERATORS_VARIABLE
from infra.memory.host_memory import available_memory
from infra.sizes import format_bytes

C_COMPILERS = ("cc", "gcc", "clang")


def refuse_beyond_memory(directory: Path | None, engine: EngineOptions, workers: int) -> None:
    """Raises `ConfigError` if KV or weights of `workers` on the CPU exceed the free memory."""
    refuse_kv_beyond_memory(engine, workers)
    if directory is not None:
        refuse_weights_beyond_memory(directory, engine, workers)


def refuse_weights_beyond_memory(
    directory: Path, engine: EngineOptions, workers: int, free_bytes: int | None = None
) -> None:
    """Raises `ConfigError` if the weights of `workers` on the CPU exceed `free_bytes` bytes (None: the free memory).

    Each worker with native operators packs its own copy of the weights. PyTorch's operators read the files' pages,
    which workers share.
    """
    copies = workers if _computes_natively(engine) else 1
    each = least_weights_bytes(directory, engine)
    free_bytes = available_memory() if free_bytes is None else free_bytes
    if each * copies <= free_bytes:
        return
    takes = f"its weights take {format_bytes(each)} at least"
    if copies > 1:
        takes += f" in each of {copies} workers"
    fitting = [option for option, works in _smaller_options(directory, engine, copies, free_bytes).items() if works]
    hint = f"; {' or '.join(fitting)} may fit" if fitting else "; a smaller model may fit"
    raise ConfigError(
        "--model", str(directory), f"{takes}, and only {format_bytes(free_bytes)} of memory are free{hint}"
    )


def refuse_kv_beyond_memory(engine: EngineOptions, workers: int, free_bytes: int | None = None) -> None:
    """Raises `ConfigError` if the KV memory of `workers` on the CPU exceeds the free memory."""
    free_bytes = available_memory() if free_bytes is None else free_bytes
    tier = 0 if engine.host_kv_directory else engine.host_kv_memory
    for option, size in (("--kv-memory", engine.kv_memory), ("--host-kv-memory", tier)):
        if size * workers > free_bytes:
            of_each = f" for {workers} workers, which each take so much" if workers > 1 else ""
            raise ConfigError(
                option, format_bytes(size), f"only {format_bytes(free_bytes)} of memory are free{of_each}"
            )


def least_weights_bytes(directory: Path, engine: EngineOptions) -> int:
    """Returns the least bytes that one copy of the weights takes in memory."""
    return _least_bytes(directory, engine.dtype, engine.quantization)


def _smaller_options(directory: Path, engine: EngineOptions, copies: int, free_bytes: int) -> dict[str, bool]:
    per_copy = free_bytes // copies
    return {
        "--prefill 0 --decode 1": copies > 1
        and _least_bytes(directory, engine.dtype, engine.quantization) <= free_bytes,
        "--dtype bf16": engine.dtype == "fp32" and _least_bytes(directory, "bf16", engine.quantization) <= per_copy,
        "--quantization int4": _least_bytes(directory, engine.dtype, "int4") <= per_copy,
    }


def _least_bytes(directory: Path, dtype: str, quantization: str) -> int:
    """Returns the bytes of one copy. A GGUF file's blocks are used as they are."""
    if (directory / GGUF_INDEX).is_file():
        return sum(Path(place).stat().st_size for place in json.loads((directory / GGUF_INDEX).read_bytes())["files"])
    return least_bytes(directory, dtype, quantization)


def _computes_natively(engine: EngineOptions) -> bool:
    """Returns whether native operators, which lack fp16, may compute; otherwise PyTorch's do."""
    wanted = engine.cpu_backend in ("auto", "native") and engine.dtype != "fp16"
    prebuilt = bool(os.environ.get(OPERATORS_VARIABLE))
    return wanted and (prebuilt or any(shutil.which(name) for name in C_COMPILERS))
