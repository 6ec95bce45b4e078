"""Workers are placed in the kernel's eyes: processes of their own ask /proc/self/numa_maps, and for their cores."""

import os
import subprocess
import sys
from pathlib import Path

from infra.memory.numa_nodes import allowed_nodes

ROOT = Path(__file__).resolve().parents[3]
NODE = min(allowed_nodes())
ABSENT_NODE = 1000
TOUCHES = """
import logging, mmap, sys, threading
from worker.host.memory_placement import interleave_over
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
def policies():
    memory = mmap.mmap(-1, 1 << 22, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    thread = threading.Thread(target=memory.write, args=(b"x" * (1 << 22),))  # another thread touches it
    thread.start()
    thread.join()
    return [line.split()[1] for line in open("/proc/self/numa_maps") if "anon=1024 " in line or "anon=1025 " in line]
"""


def run(code: str) -> tuple[str, str]:
    result = subprocess.run([sys.executable, "-c", TOUCHES + code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


def test_pages_of_all_threads_are_interleaved_and_a_line_says_so() -> None:
    out, log = run(f"interleave_over([{NODE}]); print(policies())")
    assert f"'interleave:{NODE}'" in out and "default" not in out
    assert log.startswith(f"INFO memory is interleaved over the NUMA nodes {NODE}, whose cores")


def test_a_policy_that_was_given_stays() -> None:
    """A process with a preferred node, as numactl sets it."""
    preferred = f"""
import ctypes, platform
from infra.memory.numa_policy import SYSTEM_CALLS
mask = ctypes.c_uint64({1 << NODE})
assert ctypes.CDLL(None).syscall(SYSTEM_CALLS[platform.machine()][0], 1, ctypes.byref(mask), 65) == 0
interleave_over([{NODE}])
print(policies())
"""
    out, log = run(preferred)
    assert f"'prefer:{NODE}'" in out and log == ""


def test_what_the_kernel_refuses_is_a_warning() -> None:
    out, log = run(f"interleave_over([{ABSENT_NODE}]); print(policies())")
    assert "'default'" in out
    assert log.startswith(f"WARNING memory is not interleaved over the NUMA nodes {ABSENT_NODE}, though")


def test_a_worker_that_may_use_one_node_stays_as_it_is() -> None:
    """A process with one core has one node, on any host."""
    core = min(os.sched_getaffinity(0))
    out, log = run(f"""
import os
from worker.host.memory_placement import place_worker
os.sched_setaffinity(0, {{{core}}})
place_worker(None)
print(policies(), os.sched_getaffinity(0))""")
    assert f"'default'] {{{core}}}" in out and log == ""


FIRST_CORE, LAST_CORE = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
KEEPS = f"""
import os
from infra.memory.numa_nodes import MemoryNode
from worker.host.memory_placement import keep_to
nodes = [MemoryNode(0, frozenset([{FIRST_CORE}]), True), MemoryNode(4, frozenset([{LAST_CORE}]), True)]
"""


def test_a_worker_keeps_to_its_nodes_cores_with_all_its_threads() -> None:
    out, log = run(
        KEEPS
        + """
keep_to(4, nodes)
thread = threading.Thread(target=lambda: print(os.sched_getaffinity(0)))
thread.start()
thread.join()"""
    )
    assert out.strip() == f"{{{LAST_CORE}}}"
    assert log == "INFO this worker keeps to NUMA node 4: 1 cores\n"


def test_another_node_is_refused_with_the_nodes_there_are() -> None:
    out, _ = run(
        KEEPS
        + """
from contracts.errors import ConfigError
try:
    keep_to(1, nodes)
except ConfigError as error:
    print(error)"""
    )
    assert "--numa-node" in out and "process may use: 0, 4" in out
