"""Memory is interleaved in the kernel's eyes: processes of their own ask /proc/self/numa_maps."""

import subprocess
import sys
from pathlib import Path

from infra.process.memory_nodes import allowed_nodes

ROOT = Path(__file__).resolve().parents[2]
NODE = min(allowed_nodes())
ABSENT_NODE = 1000
TOUCHES = """
import logging, mmap, sys, threading
from worker.memory_placement import interleave_over
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
from infra.process.memory_policy import SYSTEM_CALLS
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


def test_without_several_nodes_nothing_is_set() -> None:
    out, log = run("interleave_over([]); print(policies())")
    assert "'default'" in out and log == ""
