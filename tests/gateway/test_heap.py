"""What large buffers took goes back to the system, although something small was allocated in between."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = """
from gateway.heap import keep_large_buffers_apart
assert keep_large_buffers_apart()
SIZE = 1 << 20

def heap():
    for line in open("/proc/self/smaps").read().split("[heap]")[1].splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024

bytearray(16 * SIZE)  # freed: without the setting, glibc takes such sizes for small from now on
before, kept = heap(), []
for _ in range(32):
    kept.append((b"x" * SIZE, b"x" * 60_000))
large = [pair[0] for pair in kept]
kept = [pair[1] for pair in kept]
del large
assert heap() - before < 4 * SIZE, heap() - before
"""


def test_memory_goes_back() -> None:
    """In a process of its own, whose heap nobody else has used."""
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
