"""Places the memory of a worker that computes on a CPU, before it loads the model."""

import logging
import os
from collections.abc import Sequence

from infra.process.memory_nodes import allowed_nodes, interleaved_nodes, memory_nodes
from infra.process.memory_policy import has_own_policy, interleave

LOG = logging.getLogger(__name__)


def place_memory() -> None:
    """Interleaves the memory over the NUMA nodes whose cores this worker may use, if there are several."""
    interleave_over(interleaved_nodes(memory_nodes(), os.sched_getaffinity(0), allowed_nodes()))


def interleave_over(nodes: Sequence[int]) -> None:
    """Sets the policy unless there are no nodes or the process was given a policy; a line says so."""
    if not nodes:
        return
    named = ", ".join(map(str, nodes))
    try:
        if has_own_policy():
            return
        interleave(nodes)
    except OSError as error:
        LOG.warning("memory is not interleaved over the NUMA nodes %s, though the cores are theirs: %s", named, error)
        return
    LOG.info("memory is interleaved over the NUMA nodes %s, whose cores this worker may use", named)
