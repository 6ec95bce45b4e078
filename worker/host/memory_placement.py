"""Places a worker that computes on a CPU on its NUMA nodes, before it loads the model."""

import logging
import os
from collections.abc import Sequence

from contracts.errors import ConfigError
from infra.memory.numa_nodes import MemoryNode, allowed_nodes, memory_nodes, usable_nodes
from infra.memory.numa_policy import has_own_policy, interleave

LOG = logging.getLogger(__name__)


def place_worker(numa_node: int | None) -> None:
    """Keeps to the cores of one NUMA node, or interleaves the memory over all nodes whose cores this worker may use.

    Threads that start later inherit the cores, and the kernel gives a thread pages of its own node. Raises
    `ConfigError` if this process may not use the node.
    """
    nodes = usable_nodes(memory_nodes(), os.sched_getaffinity(0), allowed_nodes())
    if numa_node is not None:
        keep_to(numa_node, nodes)
    elif len(nodes) > 1:
        interleave_over([node.number for node in nodes])


def keep_to(numa_node: int, nodes: Sequence[MemoryNode]) -> None:
    """Binds this thread, and the threads it starts later, to a node's cores. Raises `ConfigError` for another node."""
    cores = {node.number: node.cores for node in nodes}
    if numa_node not in cores:
        usable = ", ".join(map(str, cores)) or "none"
        raise ConfigError("--numa-node", numa_node, f"the nodes whose cores and memory this process may use: {usable}")
    os.sched_setaffinity(0, cores[numa_node])
    LOG.info("this worker keeps to NUMA node %d: %d cores", numa_node, len(cores[numa_node]))


def interleave_over(nodes: Sequence[int]) -> None:
    """Sets the policy unless the process was given a policy; a line says so."""
    named = ", ".join(map(str, nodes))
    try:
        if has_own_policy():
            return
        interleave(nodes)
    except OSError as error:
        LOG.warning("memory is not interleaved over the NUMA nodes %s, though the cores are theirs: %s", named, error)
        return
    LOG.info("memory is interleaved over the NUMA nodes %s, whose cores this worker may use", named)
