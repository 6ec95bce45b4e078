"""Processes that keep one core busy, so that others wait for it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LOOP = """
import os, sys, threading
os.sched_setaffinity(0, {int(sys.argv[1])})
os.nice(int(sys.argv[2]))
def loop():
    while True:
        pass
if sys.argv[3] == "thread":
    threading.Thread(target=loop).start()
print("begun", flush=True)
if sys.argv[3] == "main":
    loop()
"""


@contextmanager
def busy_on_one_core(nice: int, thread: str = "main") -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process whose `thread` (main, or another: thread) computes for ever on the lowest core of this process."""
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, "-I", "-S", "-c", LOOP, str(core), str(nice), thread]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begun\n"
            yield child
        finally:
            child.kill()
