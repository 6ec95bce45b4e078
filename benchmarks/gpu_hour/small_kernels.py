"""Runs every kernel on a GPU in small odd shapes, each compared with its reference, and under NVIDIA's memory checker.

    python -m benchmarks.gpu_hour.small_kernels [--memcheck] [--kernel NAME …] [--seconds 60] [--device cuda]

The shapes are the interpreter's (`benchmarks.kernels --size tiny`): small enough for a checker of every access. PyTorch
then takes every tensor from the driver by itself, so that an access behind a tensor's end is outside of an allocation.
The status is 1 if a kernel is wrong, and 3 if the checker found something.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.kernels.measure import measure
from benchmarks.kernels.rows import KERNELS, rows

CHECKER_FOUND_STATUS = 3
SANITIZER = (
    "compute-sanitizer",
    "--tool",
    "memcheck",
    "--error-exitcode",
    str(CHECKER_FOUND_STATUS),
    "--print-limit",
    "20",
)
OWN_ALLOCATIONS = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
TABLE_HEAD = "| kernel | shape | format | found |\n| --- | --- | --- | --- |"
DTYPES = {"cuda": (torch.bfloat16, torch.float32), "cpu": (torch.float16,)}
"""The interpreter's products are wrong in bf16."""


def main() -> int:
    given = options()
    kernels = given.kernel or list(KERNELS)
    print(TABLE_HEAD, flush=True)
    if given.memcheck:
        return memcheck(kernels, ["--seconds", str(given.seconds), "--device", given.device])
    device, end, wrong = torch.device(given.device), time.monotonic() + given.seconds, 0
    for wanted in rows("tiny", kernels):
        for dtype in DTYPES[device.type]:
            said = "not run, time is over"
            if time.monotonic() < end:
                said = "right"
                try:
                    measure(wanted, wanted.shape.case(device, dtype), device, None)
                except Exception as error:  # Triton's own classes among them; the next row is still of interest
                    said = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
                    wrong += 1
            print(f"| {wanted.kernel} | {wanted.shape} | {str(dtype).removeprefix('torch.')} | {said} |", flush=True)
    return int(wrong > 0)


def memcheck(kernels: Sequence[str], more: Sequence[str]) -> int:
    with TemporaryDirectory() as directory, ExitStack() as stack:
        running = []
        for kernel in kernels:
            said = stack.enter_context((Path(directory) / kernel).open("w+"))
            command = [*SANITIZER, sys.executable, "-m", "benchmarks.gpu_hour.small_kernels", "--kernel", kernel, *more]
            settings = {**os.environ, **OWN_ALLOCATIONS}
            running.append((said, subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=settings)))
        worst = 0
        for said, process in running:
            worst = max(worst, abs(process.wait()))
            said.seek(0)
            lines = [line for line in said.read().splitlines() if line not in TABLE_HEAD.splitlines()]
            print("\n".join(lines), flush=True)
    return worst


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_hour.small_kernels", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--memcheck", action="store_true", help="under compute-sanitizer")
    parser.add_argument("--kernel", action="append", choices=list(KERNELS), help="only this; may be given again")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds after which no row begins")
    parser.add_argument("--device", default="cuda", choices=list(DTYPES), help="cpu: in Triton's interpreter")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
