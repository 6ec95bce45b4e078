"""Sizes the KV pool and the host tier, by options or by free memory.

Impossible options raise errors that name them, before anything is loaded if possible.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import torch

from contracts.errors import ConfigError
from contracts.kinds import BlockSize
from contracts.kv.spec import KVSpec, blocks_for
from engine.device import dtype_name
from engine.model.quantization import bytes_of_value
from engine.model.quantized import Form
from engine.start.block_counts import Counts, PoolLoad, bytes_of_counts, counts_for, counts_in, longest_in
from engine.start.device_memory import device_memory
from infra.config.engine import RANK_COUNTS, EngineConfig
from infra.memory.host_memory import available_memory
from infra.sizes import format_bytes

CPU_STEP_TOKENS, GPU_STEP_TOKENS = 512, 8192
"""Default token budgets of a step. A GPU reaches its full rate only with large matrices, and its host prepares the
next step meanwhile; a CPU reaches its rate with small matrices, and other requests wait for its threads."""
CPU_KV_SHARE = 0.25
CPU_KV_MAX_BYTES = 4 << 30
"""Defaults for --kv-memory on a CPU, which leave memory to other processes of the host."""


def step_tokens(config: EngineConfig, device: torch.device) -> int:
    return config.max_batch_tokens or (GPU_STEP_TOKENS if device.type == "cuda" else CPU_STEP_TOKENS)


def refuse_impossible(config: EngineConfig, device: torch.device) -> None:
    """Raises `ConfigError` for sizes and directories that work with no model on this machine."""
    if config.block_size not in get_args(BlockSize):
        sizes = ", ".join(str(size) for size in get_args(BlockSize))
        raise ConfigError("block_size", config.block_size, f"tokens per KV block are one of {sizes}")
    if device.type == "cpu":
        refuse_more_than("kv_memory", config.kv_memory, available_memory(), "free on this machine")
    if config.host_kv_directory:
        _refuse_directory(config)
    refuse_more_than("host_kv_memory", config.host_kv_memory, *host_room(config))


def refuse_more_than(key: str, size: int, available: int, where: str) -> None:
    """Raises `ConfigError` if a setting asks for more bytes than are `available`."""
    if size > available:
        raise ConfigError(key, format_bytes(size), f"only {format_bytes(available)} are {where}")


def refuse_large_weights(
    config: EngineConfig,
    weights: Mapping[Form | None, int],
    dtype: torch.dtype,
    device: torch.device,
    operators: frozenset[Form] = frozenset(),
    embedding: int = 0,
    ranks: int = 1,
) -> None:
    """Raises `ConfigError` if the weights are larger than the free memory. Of a GPU's `ranks`, each has its own GPU.

    `weights` counts weights by their quantization format in the checkpoint; None: floats. Of the floats, `embedding`
    weights stay in `dtype`, and the others get --quantization. Formats that are not in `operators` are dequantized.
    """
    available, where = available_memory(), "free on this machine"
    if device.type == "cuda":
        available, where = device_memory(device).free, f"free on {device}"
    parts = ranks if device.type == "cuda" else 1
    takes = _bytes_of(config, weights, dtype, operators, embedding)
    size = sum(takes.values()) // parts
    if size > available:
        half = sum(_bytes_of(config, weights, torch.bfloat16, operators, embedding).values()) // parts
        other = f"; --dtype bf16 takes {format_bytes(half)}" if half < size else "; --model: a smaller one may fit"
        if device.type == "cuda" and ranks < RANK_COUNTS[-1]:
            other += f", or --tensor-parallel {2 * ranks}, which divides them among GPUs"
        ((form, _),) = takes.most_common(1)
        what = f"its weights take {format_bytes(size)} in {form or dtype_name(dtype)}"
        raise ConfigError("model", config.model, f"{what}, and only {format_bytes(available)} are {where}{other}")


def _bytes_of(
    config: EngineConfig,
    weights: Mapping[Form | None, int],
    dtype: torch.dtype,
    operators: frozenset[Form],
    embedding: int,
) -> Counter[Form | None]:
    """Returns the weights' bytes by their format in memory; None: `dtype`."""
    asked: Form | None = None if config.quantization == "none" else config.quantization
    held: Counter[Form | None] = Counter({None: embedding})
    for form, count in weights.items():
        found, left = (form, count) if form is not None else (asked, count - embedding)
        held[found if found in operators else None] += left
    return Counter({form: int(count * bytes_of_value(dtype, form or "none")) for form, count in held.items()})


def _refuse_directory(config: EngineConfig) -> None:
    directory = config.host_kv_directory
    if not config.host_kv_memory:
        raise ConfigError("host_kv_directory", directory, "how much may go there? --host-kv-memory says it")
    if not Path(directory).is_dir():
        raise ConfigError("host_kv_directory", directory, "there is no such directory")
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise ConfigError("host_kv_directory", directory, f"no file can be made there: {error.strerror}") from None


def host_room(config: EngineConfig) -> tuple[int, str]:
    """Returns the maximum bytes of a host tier, and words for an error about them.

    Raises `ConfigError` if the free space of its directory is unknown.
    """
    if not config.host_kv_directory:
        return available_memory(), "free on this machine"
    try:
        return shutil.disk_usage(config.host_kv_directory).free, f"free in {config.host_kv_directory}"
    except OSError as error:
        why = f"its free space is not known: {error.strerror}"
        raise ConfigError("host_kv_directory", config.host_kv_directory, why) from None


def host_slots(config: EngineConfig, spec: KVSpec, pool_bytes: int) -> int:
    """Returns the blocks of the host tier; 0 without one.

    `pool_bytes` of this machine's memory are reserved for the KV pool, but not used yet. Raises `ConfigError` for a
    tier smaller than a block or larger than the free memory.
    """
    if not config.host_kv_memory:
        return 0
    if spec.groups[0].window:
        why = f"all layers of this model see {spec.groups[0].window} tokens, and what a window gives up is not kept"
        raise ConfigError("host_kv_memory", format_bytes(config.host_kv_memory), why)
    available, where = host_room(config)
    if not config.host_kv_directory and pool_bytes:
        available, where = max(0, available - pool_bytes), f"{where} beside the KV pool's {format_bytes(pool_bytes)}"
    refuse_more_than("host_kv_memory", config.host_kv_memory, available, where)
    group = spec.groups[0]
    slots = config.host_kv_memory // group.layers_bytes()
    if not slots:
        raise ConfigError(
            "host_kv_memory",
            format_bytes(config.host_kv_memory),
            f"a KV block of {group.block_tokens} tokens takes {format_bytes(group.layers_bytes())};"
            " give room for one at least, or 0 for none",
        )
    return slots


def blocks_that_fit(config: EngineConfig, spec: KVSpec, device: torch.device, load: PoolLoad, kept: int = 0) -> Counts:
    """Sizes the pool for `texts`, after a profiling step has shown how much memory steps take.

    On a GPU `kept` bytes stay free for adapters that are loaded later, and for a draft model's own blocks.
    Raises `ConfigError` if the requested memory is not free, or too small.
    """
    if device.type != "cuda":
        refuse_more_than("kv_memory", config.kv_memory, available_memory(), "free beside the weights")
        return pool_blocks(config, spec, cpu_spare(), load)
    memory, share = device_memory(device), config.gpu_memory_utilization
    beside = "weights, steps and adapters (--max-loras, --max-lora-rank)" if config.adapts else "weights and steps"
    refuse_more_than("kv_memory", config.kv_memory, memory.room() - kept, f"free on {device} beside {beside}")
    spare = memory.spare(share) - kept
    if not config.kv_memory and counts_in(spec, load, spare) is None:
        raise ConfigError(
            "gpu_memory_utilization",
            share,
            f"{format_bytes(int(memory.total * share))} of {device}, where weights and steps take"
            f" {format_bytes(memory.own())} and {format_bytes(memory.free)} are free: no room for KV blocks;"
            " raise it, or put fewer workers on this GPU",
        )
    return pool_blocks(config, spec, spare, load)


def pool_blocks(config: EngineConfig, spec: KVSpec, spare: int, load: PoolLoad) -> Counts:
    """Returns the blocks of each KV group, the null block included, from `spare` bytes or the configured `kv_memory`.

    At most what `max_sequences` sequences of maximum length could use. Raises `ConfigError` if no block fits, or not
    one sequence of the configured `max_model_len` (if it is 0, any length will do).
    """
    memory = config.kv_memory or spare
    option = format_bytes(config.kv_memory) if config.kv_memory else "auto"
    counts = counts_in(spec, load, memory)
    if counts is None:
        sizes = (f"{format_bytes(group.block_bytes)} in each of {len(group.layers)} layers" for group in spec.groups)
        raise ConfigError(
            "kv_memory",
            option,
            f"one KV block of {spec.groups[0].block_tokens} tokens takes {', and '.join(sizes)}, and the null block as"
            f" much; raise --kv-memory to {format_bytes(2 * spec.block_bytes())} at least"
            f" ({format_bytes(memory)} are there)",
        )
    whole_blocks = blocks_for(load.longest, config.block_size) * config.block_size
    counts = min(
        counts, counts_for(spec, load, config.max_sequences * whole_blocks)
    )  # all counts grow together, so the smaller tuple is smaller in each
    fits = longest_in(spec, load, counts)
    if config.max_model_len and fits < load.longest:
        needed = bytes_of_counts(spec, counts_for(spec, load, load.longest))
        raise ConfigError(
            "kv_memory",
            option,
            f"one sequence of {load.longest} tokens needs {format_bytes(needed)} of KV blocks and"
            f" {format_bytes(memory)} are there; raise --kv-memory, or lower --max-model-len to {fits} or less",
        )
    return counts


def cpu_spare() -> int:
    return min(int(available_memory() * CPU_KV_SHARE), CPU_KV_MAX_BYTES)
