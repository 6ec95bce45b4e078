"""Runs every kernel on a GPU in small odd shapes, each compared with its reference, and under NVIDIA's memory checker.

    python -m benchmarks.gpu_hour.small_kernels [--memcheck] [--kernel NAME …] [--seconds 60] [--device cuda]

The shapes are those that the interpreter runs (`benchmarks.kernels --size tiny`): small enough for a checker that looks
at every access. PyTorch then takes every tensor from the driver by itself, so that an access behind a tensor's end is
one outside of an allocation. The status is 1 if a kernel is wrong, and 3 if the checker found something.
"""

import argparse
import os
import sys
import time

import torch

from benchmarks.kernels.measure import measure
from benchmarks.kernels.rows import MODULES, rows

FOUND = 3
SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", str(FOUND), "--print-limit", "20")
OWN_ALLOCATIONS = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
DTYPES = {"cuda": (torch.bfloat16, torch.float32), "cpu": (torch.float16,)}
"""The interpreter's products are wrong in bf16."""


def main() -> int:
    """Prints a line for each row; returns 1 if one is wrong."""
    given = options()
    own = [each for each in sys.argv[1:] if each != "--memcheck"]
    if given.memcheck:
        command = [*SANITIZER, sys.executable, "-m", "benchmarks.gpu_hour.small_kernels", *own]
        os.execvpe(command[0], command, {**os.environ, **OWN_ALLOCATIONS})
    device, end, wrong = torch.device(given.device), time.monotonic() + given.seconds, 0
    print("| kernel | shape | format | found |\n| --- | --- | --- | --- |")
    for wanted in rows("tiny", given.kernel or list(MODULES)):
        for dtype in DTYPES[device.type]:
            said = "not run, time is over"
            if time.monotonic() < end:
                said = "right"
                try:
                    case = wanted.shape.case(device, dtype)
                    measure(wanted.kernel, str(wanted.shape), wanted.limit, None, case, device, None)
                except Exception as error:  # Triton's own classes among them; the next kernel is still of interest
                    said = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
                    wrong += 1
            print(f"| {wanted.kernel} | {wanted.shape} | {str(dtype).removeprefix('torch.')} | {said} |", flush=True)
    return int(wrong > 0)


def options() -> argparse.Namespace:
    """Makes the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_hour.small_kernels", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--memcheck", action="store_true", help="under compute-sanitizer")
    parser.add_argument("--kernel", action="append", choices=list(MODULES), help="only this; may be given again")
    parser.add_argument("--seconds", type=float, default=60.0, help="rows after so many are left out")
    parser.add_argument("--device", default="cuda", choices=list(DTYPES), help="cpu: in Triton's interpreter")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
