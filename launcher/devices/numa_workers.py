"""Chooses the NUMA nodes of this host that get workers of their own.

Workers that keep to a node read its memory only, and its cores are divided among these workers alone. That needs the
weights in every worker of every node. Where they do not fit, the usual workers take all nodes and interleave their
memory.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from checkpoints.model_location import downloaded
from infra.memory.numa_nodes import MemoryNode, allowed_nodes, memory_nodes, usable_nodes
from infra.sizes import format_bytes
from launcher.checking.memory import least_weights_bytes
from launcher.options import WorkersOptions

WEIGHTS_SHARE = 0.5
"""Share of a node's available memory for all copies of the weights; KV and steps take the rest."""


class NumaChoice(NamedTuple):
    """The NUMA nodes that get workers of their own."""

    nodes: tuple[int, ...] = ()  # numbers of nodes; empty: each worker takes all nodes
    note: str = ""  # sentence for the user


def numa_choice(options: WorkersOptions, directory: Path | None, gpus: int) -> NumaChoice:
    """Chooses the nodes for the workers of this host. `directory`: the model's; None for a hub id."""
    if gpus:
        return NumaChoice()
    nodes = usable_nodes(memory_nodes(), os.sched_getaffinity(0), allowed_nodes())
    return choose_nodes(nodes, options, directory or downloaded(options.model))


def choose_nodes(nodes: Sequence[MemoryNode], options: WorkersOptions, directory: Path | None) -> NumaChoice:
    """Returns all `nodes` if each gets as many workers of each role, and has memory for them; else no node."""
    wished = [count for count in (options.prefill, options.decode) if count is not None]
    if len(nodes) < 2 or directory is None or any(count % len(nodes) for count in wished):
        return NumaChoice()
    engine = options.engine
    workers = (sum(wished) + (2 - len(wished)) * len(nodes)) // len(nodes)  # of each node
    weights = workers * least_weights_bytes(directory, engine)
    tier = 0 if engine.host_kv_directory else engine.host_kv_memory
    needed = max(weights / WEIGHTS_SHARE, weights + workers * (engine.kv_memory + tier))
    smallest = min(nodes, key=lambda node: node.available_bytes)
    if needed > smallest.available_bytes:
        room = f"only {format_bytes(smallest.available_bytes)} of node {smallest.number} are free"
        copies = f"the weights of {workers} workers take {format_bytes(weights)}"
        return NumaChoice(note=f"{len(nodes)} NUMA nodes: workers take all of them, since {copies}, and {room}")
    numbers = tuple(node.number for node in nodes)
    named = ", ".join(map(str, numbers))
    kept = f"{workers} workers keep" if workers > 1 else "one worker keeps"
    change = "--prefill 1 --decode 1 has workers that take all nodes"
    return NumaChoice(numbers, f"NUMA nodes {named}: {kept} to each node's cores and memory; {change}")
