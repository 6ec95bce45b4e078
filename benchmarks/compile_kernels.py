"""Compiles every GPU kernel ahead of time, for each kind of GPU, and prints its resources. Needs no GPU.

    python -m benchmarks.compile_kernels [--kernel NAME …] [--sm 90 …] [--quick | --budgets]

The rows of `benchmarks.kernels`, and further variants that models use, are launched through the kernels' own wrappers
with their default configs on tensors without memory; a launch ends after compiling. Every row is launched in bf16, the
first rows in fp16 and fp32 as well. Registers, spills and stack are by `ptxas -v`, shared memory is by Triton, beside
the largest that a block of the device can have. Then the machine code of the hot loops is counted, but with `--quick`;
`--budgets` compiles only the rows that have a budget. The status is 1 if a kernel does not compile, spills, takes too
much shared memory, or exceeds a budget. `docs/kernels.md` explains the columns.
"""

import argparse
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import torch

if importlib.util.find_spec("triton") is None:
    sys.exit("error: Triton is not installed here: pip install -c constraints.txt triton")

from benchmarks.kernels.case import Size
from benchmarks.kernels.loop_table import LoopTable, budgets_of
from benchmarks.kernels.rows import KERNELS, Wanted, rows
from benchmarks.simulated.compile_only import MAX_SHARED_BYTES, VERSION, CompileOnly, compiling
from benchmarks.simulated.machine_code import disassembler_version
from kernels.device import assumed

INTERPRET = "TRITON_INTERPRET"
META = torch.device("meta")
OTHER_DTYPES = (torch.float16, torch.float32)
SIZES: tuple[Size, Size] = ("full", "compiled")
MAX_SPILLED_BYTES = 16
"""Registers that are put aside once, outside of loops, where the assembler reaches a bound of its own."""


class Launch(NamedTuple):
    """A row, its format, and the compute capability that it is compiled for."""

    wanted: Wanted
    dtype: torch.dtype
    sm: int


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def launched_on(sm: int, wanted: Wanted) -> bool:
    with assumed(*divmod(sm, 10)):
        return KERNELS[wanted.kernel].launched(**wanted.shape.arguments)


def launches(kernels: list[str], sm: int, quick: bool) -> Iterator[Launch]:
    for kernel in kernels:
        full, more = ([each for each in rows(size, [kernel]) if launched_on(sm, each)] for size in SIZES)
        for wanted in full[:1] if quick else full + more:
            yield Launch(wanted, torch.bfloat16, sm)
        for wanted in [] if quick else full[:1] + more[:1]:
            yield from (Launch(wanted, dtype, sm) for dtype in OTHER_DTYPES)


def with_budgets(kernels: list[str], sm: int) -> Iterator[Launch]:
    for kernel in kernels:
        wanted = {str(each.shape): each for size in SIZES for each in rows(size, [kernel]) if budgets_of(each, sm)}
        yield from (Launch(each, torch.bfloat16, sm) for each in wanted.values())


def compile_all(found: Iterable[Launch], driver: CompileOnly, loops: LoopTable | None = None) -> tuple[int, int]:
    """Prints a line for each specialization as it comes, and adds hot loops to a table.

    Returns how many there are, and how many failed, spill or take more shared memory than there is.
    """
    count = bad = 0
    print("| kernel | compiled for | sm | warps | registers | spilled bytes | stack | shared bytes | of |")
    print("| --- " * 9 + "|")
    for launch in found:
        wanted, dtype, driver.sm = launch
        compiled, error = driver.launch(lambda: wanted.shape.case(META, dtype).run(None))  # noqa: B023 - it is run here
        if loops is not None:
            loops.add(wanted, name_of(dtype), launch.sm, compiled, driver.used)
        for each in compiled:
            spilled = f"**{each.spilled}**" if each.spilled > MAX_SPILLED_BYTES else str(each.spilled)
            shared = str(each.shared) if each.fits else f"**{each.shared}**"
            what = (f"{wanted.kernel}.{each.name}", f"{wanted.shape}, {name_of(dtype)}", each.sm, each.warps)
            print(
                "|",
                *(
                    f"{cell} |"
                    for cell in (*what, each.registers, spilled, each.stack, shared, MAX_SHARED_BYTES[each.sm])
                ),
            )
            sys.stdout.flush()
        failed = bool(error) and all(each.fits for each in compiled)  # too large ones have a row already
        if failed:
            print(f"| {wanted.kernel} | {wanted.shape}, {name_of(dtype)} | {launch.sm} | **failed**: {error} ||||||")
        count += len(compiled) + failed
        bad += sum(each.spilled > MAX_SPILLED_BYTES or not each.fits for each in compiled) + failed
    return count, bad


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compile_kernels", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--kernel", action="append", choices=list(KERNELS), help="only this; may be given again")
    parser.add_argument(
        "--sm", action="append", type=int, choices=list(MAX_SHARED_BYTES), help="only this; may be given again"
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--quick", action="store_true", help="one row of each kernel, whose machine code is not read")
    chosen.add_argument("--budgets", action="store_true", help="only rows with a budget of their machine code")
    given = parser.parse_args()
    if INTERPRET in os.environ:  # Triton reads it when a kernel is decorated: with it, nothing is compiled
        own = {name: value for name, value in os.environ.items() if name != INTERPRET}
        os.execve(sys.executable, [*sys.orig_argv], own)
    print(f"triton {VERSION}, {disassembler_version()}\n")
    kernels, loops = given.kernel or list(KERNELS), None if given.quick else LoopTable()
    with compiling() as driver:
        wanted = chain.from_iterable(
            with_budgets(kernels, sm) if given.budgets else launches(kernels, sm, given.quick)
            for sm in given.sm or MAX_SHARED_BYTES
        )
        count, bad = compile_all(wanted, driver, loops)
    if loops is not None:
        print(f"\n{loops}")
        bad += len(loops.exceeded)
    print(f"\n{count} specializations, of which {bad} failed, spill, do not fit or exceed a budget")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
