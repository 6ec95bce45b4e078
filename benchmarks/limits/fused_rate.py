"""Measures how fast a CPU multiplies and adds fp32 numbers that are in registers already: no product of them is faster.

It is compiled for the instructions that the native operators use, so it is their limit with AVX2, too.
"""

import ctypes
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Barrier

from contracts.errors import NativeError
from engine.backends.native.compiling.build import COMPILE_TIMEOUT_S, chosen_target, compiler

FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-ffp-contract=fast", "-Wno-psabi")
MULTIPLICATIONS_PER_SUM = 1_000_000
"""Multiplications that each sum of a repeat adds up: some milliseconds of work."""
FACTOR = 0.5
REPEATS_PER_RATE = 5


def fused_rate(threads: int) -> float:
    library = _library()
    if library is None:
        return 0.0
    together = Barrier(threads)

    def measured(_: int) -> float:
        result = ctypes.c_float()
        together.wait(COMPILE_TIMEOUT_S)
        begin = time.perf_counter()
        operations = library.multiply_and_add(MULTIPLICATIONS_PER_SUM, FACTOR, ctypes.byref(result))
        return float(operations / (time.perf_counter() - begin))

    with ThreadPoolExecutor(threads) as pool:
        return max(sum(pool.map(measured, range(threads))) for _ in range(REPEATS_PER_RATE))


@cache
def _library() -> ctypes.CDLL | None:
    source = Path(__file__).with_suffix(".c")
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(scratch) / "fused_rate.so"
        try:
            command = [*compiler(), *FLAGS, *chosen_target(), str(source), "-o", str(library)]
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_TIMEOUT_S)
        except (NativeError, OSError, subprocess.SubprocessError):
            return None
        loaded = ctypes.CDLL(str(library))
    loaded.multiply_and_add.argtypes = [ctypes.c_long, ctypes.c_float, ctypes.POINTER(ctypes.c_float)]
    loaded.multiply_and_add.restype = ctypes.c_long
    return loaded
