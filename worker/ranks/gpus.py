"""Gives each rank of a worker a GPU of its own, in the order in which the worker sees its GPUs."""

import os
from collections.abc import Mapping

from contracts.errors import ConfigError

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


def gpus_of_ranks(ranks: int, device: str, seen: int, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns each rank's entry of `CUDA_VISIBLE_DEVICES`. `device`: as configured; `seen`: GPUs that the worker sees.

    Raises `ConfigError` if it sees fewer than ranks, or `device` names a single GPU.
    """
    if ":" in device:
        raise ConfigError("device", device, f"is one GPU, and each of {ranks} ranks takes one; --device cuda")
    if seen < ranks:
        why = f"each rank takes a GPU of its own, all of them on one host, and this worker sees {seen}"
        raise ConfigError("tensor_parallel", ranks, why)
    chosen = environment.get(VISIBLE_GPUS)
    return [each.strip() for each in chosen.split(",")][:ranks] if chosen else [str(rank) for rank in range(ranks)]
