"""Decides how many workers this host runs and on which GPUs or NUMA nodes, and refuses what its memory cannot hold."""

from collections.abc import Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from launcher.checking.memory import refuse_beyond_memory
from launcher.devices.numa_workers import numa_choice
from launcher.devices.worker_counts import decide_workers, gpus_of_host
from launcher.options import WorkersOptions

Options = TypeVar("Options", bound=WorkersOptions)


class HostWorkers(NamedTuple, Generic[Options]):
    """The options of a host's workers, with their numbers and ranks decided."""

    options: Options
    numa_nodes: tuple[int, ...]  # among which the workers of each role are dealt; none: workers take all nodes
    notes: list[str]  # sentences about the workers, for the user


def workers_of_host(options: Options, directory: Path | None, gpus: Sequence[str]) -> HostWorkers[Options]:
    """Returns the options of the workers of this host.

    `directory`: the model's; None for a hub id. `gpus`: entries of CUDA_VISIBLE_DEVICES; none: workers compute on the
    CPU. Raises `ConfigError` for workers that the GPUs or the memory of this host cannot hold.
    """
    numa = numa_choice(options, directory, len(gpus))
    prefill, decode, engine, notes = decide_workers(options, gpus_of_host(gpus), directory, len(numa.nodes))
    if not gpus:
        refuse_beyond_memory(directory, options.engine, prefill + decode)
    decided = replace(options, prefill=prefill, decode=decode, engine=engine)
    return HostWorkers(decided, numa.nodes, [*notes, *filter(None, (numa.note,))])
