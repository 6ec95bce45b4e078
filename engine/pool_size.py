"""How many KV blocks a worker gets: what the user said, else what the device can spare."""

import os
from pathlib import Path

import torch

from core.config import EngineConfig
from core.errors import ConfigError
from core.kvspec import KVSpec, blocks_for
from engine.kv_pool import blocks_in, blocks_of_sequences

CPU_SHARE = 0.25
CPU_CAP = 4 << 30
"""Other workers and other people live on the same host; who wants more says so."""

MiB = 1 << 20


def pool_blocks(config: EngineConfig, spec: KVSpec, spare: int, max_model_len: int) -> int:
    """Blocks of the pool, the null block included, from `spare` bytes or the configured `kv_memory`.

    Never more than `max_sequences` of `max_model_len` tokens could use. Raises `ConfigError` where one sequence of the
    length that was asked for does not fit. Nobody asked where the configured length is 0: see `longest_that_fits`.
    """
    memory = config.kv_memory or spare
    blocks = min(blocks_in(memory, spec), blocks_of_sequences(spec, config.max_sequences, max_model_len))
    asked = max_model_len if config.max_model_len else 1
    needed = blocks_of_sequences(spec, 1, asked)
    if blocks < needed:
        fits = max(0, blocks - 1) * spec.groups[0].block_tokens
        raise ConfigError(
            "kv_memory",
            f"{memory / MiB:.1f}MiB" if config.kv_memory else "auto",
            f"one sequence of {asked} tokens needs {needed * spec.block_bytes() / MiB:.1f} MiB of KV blocks and"
            f" {memory / MiB:.1f} MiB are there; raise --kv-memory, or lower --max-model-len to {fits} or less",
        )
    return blocks


def longest_that_fits(spec: KVSpec, blocks: int, max_model_len: int) -> int:
    """Tokens that one sequence can have in a pool of `blocks` blocks, up to the model's own `max_model_len`."""
    return min(max_model_len, (blocks - 1) * spec.groups[0].block_tokens)


def cpu_spare() -> int:
    """Bytes that a worker takes on a CPU when nobody says otherwise."""
    return min(int(available_memory() * CPU_SHARE), CPU_CAP)


def available_memory() -> int:
    """Bytes that this process may still use: the kernel's estimate, or what its control group leaves."""
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []:
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) << 10, _group_left())
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _group_left() -> int:
    """Bytes left under a container's memory limit; a huge number where there is none."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return 1 << 62
    return 1 << 62 if limit == "max" else max(0, int(limit) - used)


def cuda_spare(device: torch.device, utilization: float) -> int:
    """Bytes for KV blocks, after a profiling step has shown how much the model's own work takes at its peak.

    Memory of other processes counts as used; PyTorch's cache beyond the peak is given back first.
    """
    peak = torch.cuda.max_memory_allocated(device)
    held = torch.cuda.memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    outside = total - free - torch.cuda.memory_reserved(device)
    return max(0, int(total * utilization) - outside - max(peak, held))


def profiled_tokens(config: EngineConfig, max_model_len: int) -> list[int]:
    """Lengths of the sequences of the largest step: prompts that fill `max_batch_tokens`."""
    whole, rest = divmod(config.max_batch_tokens, max_model_len)
    lengths = [max_model_len] * whole + ([rest] if rest else [])
    return lengths[: config.max_sequences]


def profiled_blocks(lengths: list[int], block_tokens: int) -> int:
    """Blocks of the pool that the profiling step runs on."""
    return sum(blocks_for(length, block_tokens) for length in lengths) + 1
