"""Refuses weights that cannot fit into this host's memory by the sizes of their files, before anything is started."""

import json
import shutil
from pathlib import Path

from checkpoints.gguf.unpacking import GGUF_INDEX
from checkpoints.weight_sizes import least_bytes
from contracts.errors import ConfigError
from infra.config.engine import EngineOptions
from infra.process.memory import available_memory
from infra.sizes import format_bytes

COMPILERS = ("cc", "gcc", "clang")


def refuse_weights_beyond_memory(
    directory: Path, engine: EngineOptions, workers: int, there: int | None = None
) -> None:
    """Raises `ConfigError` where `workers` that compute on the CPU cannot hold a model; `there`: bytes, free if None.

    Each worker with native operators has its own copy of the weights, packed for them. PyTorch's operators read the
    files' pages, which workers share.
    """
    copies = workers if _computes_natively(engine) else 1
    each = _least_bytes(directory, engine.dtype, engine.quantization)
    there = available_memory() if there is None else there
    if each * copies <= there:
        return
    takes = f"its weights take {format_bytes(each)} at least"
    if copies > 1:
        takes += f" in each of {copies} workers"
    fitting = [option for option, works in _others(directory, engine, copies, there).items() if works]
    hint = f"; {' or '.join(fitting)} may fit" if fitting else "; a smaller model may fit"
    raise ConfigError("--model", str(directory), f"{takes}, and only {format_bytes(there)} of memory are free{hint}")


def refuse_kv_beyond_memory(engine: EngineOptions, workers: int, there: int | None = None) -> None:
    """Raises `ConfigError` where `workers` on the CPU cannot have the KV memory that each is told to take."""
    there = available_memory() if there is None else there
    tier = 0 if engine.host_kv_directory else engine.host_kv_memory
    for option, size in (("--kv-memory", engine.kv_memory), ("--host-kv-memory", tier)):
        if size * workers > there:
            of_each = f" for {workers} workers, which each take so much" if workers > 1 else ""
            raise ConfigError(option, format_bytes(size), f"only {format_bytes(there)} of memory are free{of_each}")


def _others(directory: Path, engine: EngineOptions, copies: int, there: int) -> dict[str, bool]:
    """Returns options that take less memory, each with whether it would be enough."""
    room = there // copies
    return {
        "--prefill 0 --decode 1": copies > 1 and _least_bytes(directory, engine.dtype, engine.quantization) <= there,
        "--dtype bf16": engine.dtype == "fp32" and _least_bytes(directory, "bf16", engine.quantization) <= room,
        "--quantization int4": _least_bytes(directory, engine.dtype, "int4") <= room,
    }


def _least_bytes(directory: Path, dtype: str, quantization: str) -> int:
    """Returns what one copy takes. The blocks of a GGUF file stay as they are."""
    if (directory / GGUF_INDEX).is_file():
        return sum(Path(place).stat().st_size for place in json.loads((directory / GGUF_INDEX).read_bytes())["files"])
    return least_bytes(directory, dtype, quantization)


def _computes_natively(engine: EngineOptions) -> bool:
    """Tells whether native operators, which have no fp16, may pack weights; PyTorch's compute otherwise."""
    wanted = engine.cpu_backend in ("auto", "native") and engine.dtype != "fp16"
    return wanted and any(shutil.which(name) for name in COMPILERS)
