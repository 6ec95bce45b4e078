"""Measures the GPU's kernels beside what the device can do at most, and beside PyTorch's own operators.

    python -m benchmarks.kernels [--kernel NAME …] [--json FILE] [--tune] [--seconds 300]
    python -m benchmarks.kernels --size tiny

Every kernel is compared with its reference before it is timed. Times are medians of replays of a CUDA graph, each with
a cold L2. *% of limit* is of the bytes per second of a copy, or the operations per second of a matrix product, both
measured in the same run. *x faster* is the best of PyTorch's times over ours. With `--tune`, each kernel's candidates
are measured instead, and the best kept in this host's table (`kernels/tuned_tables.py`). `--size tiny` runs every
kernel in Triton's interpreter on a CPU: right or wrong, but no times.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import get_args

import torch

from benchmarks.kernels.case import Size
from benchmarks.kernels.measure import TABLE_HEAD, Row, limits_line, line, measure, versions, write_json
from benchmarks.kernels.rows import KERNELS, Wanted, in_turns, rows
from benchmarks.kernels.tune import Tuner
from benchmarks.limits.device_time import Limits, limits_of

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
INTERPRET = "TRITON_INTERPRET"


def main() -> int:
    given = options()
    tiny = given.size == "tiny"
    if not tiny and not torch.cuda.is_available():
        print("error: --size full: PyTorch finds no usable NVIDIA GPU here; --size tiny needs none", file=sys.stderr)
        return 2
    if bool(os.environ.get(INTERPRET)) != tiny:  # Triton reads it when a kernel is decorated
        settings = {name: value for name, value in os.environ.items() if name != INTERPRET}
        os.execve(sys.executable, [*sys.orig_argv], settings | ({INTERPRET: "1"} if tiny else {}))
    device = torch.device("cpu" if tiny else "cuda")
    wanted = list(rows(given.size, given.kernel or list(KERNELS)))
    print(versions(device))
    if given.tune:
        return tune(in_turns(wanted), device, given.seconds)
    # The interpreter's products are wrong in bf16.
    dtype = "fp16" if tiny else given.dtype
    limits = None if tiny else limits_of(device, DTYPES[dtype])
    print(f"{dtype}; {limits_line(limits)}\n\n{TABLE_HEAD}" if limits else f"{dtype}\n\n{TABLE_HEAD}", flush=True)
    end = time.monotonic() + given.seconds
    measured = []
    for each in wanted:
        measured.append(_row(each, device, DTYPES[dtype], limits, end))
        print(line(measured[-1]), flush=True)
        if given.json:
            write_json(given.json, device, dtype, limits, measured)
    return int(any(row.error for row in measured))


def tune(wanted: list[Wanted], device: torch.device, seconds: float) -> int:
    tuner, end, written = Tuner(device), time.monotonic() + seconds, list[str]()
    for number, each in enumerate(wanted):
        if time.monotonic() > end:
            print(f"time is over: {len(wanted) - number} of {len(wanted)} rows were not measured")
            break
        print(f"{each.kernel}: {each.shape}", flush=True)
        tuner.add(each.kernel, each.shape.case(device, torch.bfloat16), KERNELS[each.kernel].candidates)
        written = tuner.keep()
    print("\n".join(written))
    return 0


def _row(wanted: Wanted, device: torch.device, dtype: torch.dtype, limits: Limits | None, end: float) -> Row:
    if time.monotonic() > end:
        error = "not measured, time is over"
    else:
        try:
            return measure(wanted, wanted.shape.case(device, dtype), device, limits)
        except Exception as failed:  # Triton's own classes among them
            error = f"{type(failed).__name__}: {' '.join(str(failed).split())[:200]}"
    return Row(wanted.kernel, str(wanted.shape), wanted.limit, error=error)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.partition("\n")[0])
    sizes = [size for size in get_args(Size) if size != "compiled"]
    parser.add_argument("--size", default="full", choices=sizes, help="tiny: in Triton's interpreter, on a CPU")
    parser.add_argument("--kernel", action="append", choices=list(KERNELS), help="only this; may be given again")
    parser.add_argument("--dtype", default="bf16", choices=list(DTYPES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--tune", action="store_true", help="measure each kernel's candidates, and keep the best")
    parser.add_argument("--seconds", type=float, default=600.0, help="time after which rows are left out")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
