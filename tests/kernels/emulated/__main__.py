"""Runs compiled kernels without a GPU: the small rows of `benchmarks.kernels`, each compared with its reference.

    python -m tests.kernels.emulated [--kernel NAME …] [--sm 80 …] [--dtype bfloat16 …] [--seconds 600]

A line for each row; the status is 1 if a result is wrong, or if a kernel's result would depend on luck: on which warp
is faster, on memory that is not there yet, on what lies behind a tensor.
"""

import argparse
import gc
import os
import sys
import time
from itertools import product

import torch

from benchmarks.compile_kernels import INTERPRET, launched_on
from benchmarks.kernels.rows import KERNELS, Wanted, rows
from tests.kernels.emulated.driver import EmulatingDriver, emulating

CPU = torch.device("cpu")
TARGETS = (80, 89, 90)
ADDRESS_TABLE_KERNELS = {"lora"}
"""Kernels that read tensors by addresses in another tensor."""
MAX_ERROR_CHARS = 300
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.emulated", description=__doc__.partition("\n")[0])
    parser.add_argument("--kernel", action="append", choices=list(KERNELS), help="only this; may be given again")
    parser.add_argument("--sm", action="append", type=int, choices=TARGETS, help="compute capability; default: all")
    parser.add_argument("--dtype", action="append", choices=list(DTYPES), help="default: bfloat16")
    parser.add_argument("--only", default="", help="only rows whose text has this")
    parser.add_argument("--seconds", type=float, default=3600.0, help="rows that would begin later are left out")
    given = parser.parse_args()

    if INTERPRET in os.environ:  # Triton reads it when a kernel is decorated: with it, nothing is compiled
        own = {name: value for name, value in os.environ.items() if name != INTERPRET}
        os.execve(sys.executable, [*sys.orig_argv], own)
    torch.set_num_threads(1)
    print("| kernel | shape | format | sm | found | seconds |\n" + "| --- " * 6 + "|", flush=True)
    end, counts = time.monotonic() + given.seconds, {"right": 0, "wrong": 0, "left out": 0}
    for sm in given.sm or TARGETS:
        launched = [each for each in rows("tiny", given.kernel or list(KERNELS)) if launched_on(sm, each)]
        with emulating(sm) as driver:
            for wanted, name in product(launched, given.dtype or ["bfloat16"]):
                if given.only in str(wanted.shape):
                    started = time.monotonic()
                    error = check(driver, wanted, DTYPES[name]) if started < end else "left out: time is over"
                    counts["left out" if started >= end else "wrong" if error else "right"] += 1
                    took = time.monotonic() - started
                    print(
                        f"| {wanted.kernel} | {wanted.shape} | {name} | {sm} | {error or 'right'} | {took:.1f} |",
                        flush=True,
                    )
    print("\n" + ", ".join(f"{count} {word}" for word, count in counts.items()))
    return int(counts["wrong"] > 0)


def check(driver: EmulatingDriver, wanted: Wanted, dtype: torch.dtype) -> str:
    """Returns an error message, or an empty one."""

    def work() -> None:
        torch.manual_seed(0)
        case = wanted.shape.case(CPU, dtype)
        if wanted.kernel in ADDRESS_TABLE_KERNELS:
            driver.reached_by_address = [each for each in gc.get_objects() if type(each) is torch.Tensor]
        case.check(None)

    _, error = driver.launch(work)
    driver.reached_by_address = []
    return " ".join(error.split())[:MAX_ERROR_CHARS]


if __name__ == "__main__":
    sys.exit(main())
