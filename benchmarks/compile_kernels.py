"""Compiles every GPU kernel ahead of time, for sm_90, and prints what each takes. Needs no GPU.

    python -m benchmarks.compile_kernels [--kernel NAME …] [--quick]

The rows of `benchmarks.kernels`, and others with what else a model may make of a kernel, are launched through the
kernels' own wrappers, with their default configs, on tensors without memory; the launches compile and end there. Every
row is launched in bf16, and the first ones in fp16 and fp32 as well. Registers, spills and stack are what `ptxas -v`
says, shared memory is what Triton asks the device for. The status is 1 if a kernel does not compile, or spills.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from benchmarks.compile_only import HOPPER, VERSION, CompileOnly, compiling
from benchmarks.kernels.rows import MODULES, Wanted, rows

INTERPRET = "TRITON_INTERPRET"
META = torch.device("meta")
OTHERS = (torch.float16, torch.float32)


class Launch(NamedTuple):
    """Holds a row, and the format that it is launched in."""

    wanted: Wanted
    dtype: torch.dtype


def name_of(dtype: torch.dtype) -> str:
    """Returns PyTorch's word for a format, without `torch.`."""
    return str(dtype).removeprefix("torch.")


def launches(kernels: list[str], quick: bool) -> Iterator[Launch]:
    """Lists the launches of each kernel; `quick`: of its first row alone."""
    for kernel in kernels:
        full, more = list(rows("full", [kernel])), list(rows("compiled", [kernel]))
        for wanted in full[:1] if quick else full + more:
            yield Launch(wanted, torch.bfloat16)
        for wanted in [] if quick else full[:1] + more[:1]:
            yield from (Launch(wanted, dtype) for dtype in OTHERS)


def compile_all(found: Iterable[Launch], driver: CompileOnly) -> tuple[int, int]:
    """Prints a line for each specialization as it comes; returns how many there are, and how many failed or spill."""
    count = bad = 0
    print("| kernel | compiled for | warps | registers | spilled bytes | stack | shared bytes |\n" + "| --- " * 7 + "|")
    for launch in found:
        wanted, dtype = launch
        compiled, error = driver.launch(lambda: wanted.shape.case(META, dtype).run(None))  # noqa: B023 - it is run here
        for each in compiled:
            spilled = f"**{each.spilled}**" if each.spilled else "0"
            cells = (f"{wanted.kernel}.{each.name}", f"{wanted.shape}, {name_of(dtype)}", each.warps, each.registers)
            print("|", *(f"{cell} |" for cell in (*cells, spilled, each.stack, each.shared)), flush=True)
        if error:
            print(f"| {wanted.kernel} | {wanted.shape}, {name_of(dtype)} | **failed**: {error} |||||", flush=True)
        count += len(compiled) + bool(error)
        bad += sum(each.spilled > 0 for each in compiled) + bool(error)
    return count, bad


def main() -> int:
    """Prints the table; returns 1 if a kernel does not compile, or spills."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compile_kernels", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--kernel", action="append", choices=list(MODULES), help="only this; may be given again")
    parser.add_argument("--quick", action="store_true", help="one row of each kernel")
    given = parser.parse_args()
    if INTERPRET in os.environ:  # Triton reads it when a kernel is decorated: with it, nothing is compiled
        own = {name: value for name, value in os.environ.items() if name != INTERPRET}
        os.execve(sys.executable, [*sys.orig_argv], own)
    print(f"triton {VERSION}, {HOPPER.backend} sm_{HOPPER.arch}\n")
    with compiling() as driver:
        count, bad = compile_all(launches(given.kernel or list(MODULES), given.quick), driver)
    print(f"\n{count} specializations, of which {bad} failed or spill")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
