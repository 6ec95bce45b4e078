"""Kernels are compiled without a GPU: all of them here in one shape each, and what is wrong with one is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kernels.rows import KERNELS
from launcher.options import ROOT
from tests.waiting import LONG_DEADLINE_S

PARTS = 2
"""Of all kernels: each is compiled within a test's time, on a busy machine too."""

HARDEST = """
import sys, torch
from benchmarks.compile_kernels import Launch, compile_all, launched_on
from benchmarks.simulated.compile_only import compiling
from benchmarks.kernels.kv import Heads
from benchmarks.kernels.rows import KERNELS, Wanted
from benchmarks.kernels.weights import Groups, Sizes

def row(name, **arguments):
    return Wanted(name, KERNELS[name].shape(**arguments), KERNELS[name].limit)

ROWS = [row("prefill_attention", tokens=512, context=512, heads=Heads(8, 2, 256))]
ENCODED = [row("block_copy", what=code, blocks=4, layers=1, heads=Heads(4, 2, 80)) for code in ("int8", "fp8")]
CONVERTED = row("quantized_product", rows=128, sizes=Sizes(4096, 4096), groups=Groups("int4", 32), parts=8)
with compiling() as driver:
    found = [Launch(CONVERTED, torch.bfloat16, 100)]
    found += [Launch(wanted, torch.bfloat16, sm) for sm in (86, 100) for wanted in ROWS]
    found += [Launch(wanted, torch.bfloat16, sm) for sm in (86, 89) for wanted in ENCODED if launched_on(sm, wanted)]
    print(*compile_all(found, driver))
"""


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=LONG_DEADLINE_S,
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_every_kernel_compiles_without_spilling(part: int) -> None:
    """Though these tests' environment asks for the interpreter."""
    kernels = list(KERNELS)[part::PARTS]
    chosen = [word for kernel in kernels for word in ("--kernel", kernel)]
    result = run("-m", "benchmarks.compile_kernels", "--quick", "--sm", "90", *chosen)
    assert result.returncode == 0, result.stdout + result.stderr
    compiled = [
        line.split(" | ") for line in result.stdout.splitlines() if line.startswith("| ") and "---" not in line
    ][1:]
    assert {line[0].removeprefix("| ").partition(".")[0] for line in compiled} == set(kernels)
    assert all(line[2] == "90" and 0 < int(line[4]) <= 255 and line[5] == "0" for line in compiled)
    assert all(int(line[7]) <= int(line[8].removesuffix(" |")) == 227 << 10 for line in compiled)
    assert result.stdout.endswith(
        f"\n{len(compiled)} specializations, of which 0 failed, spill, do not fit or exceed a budget\n"
    )


def test_what_takes_most_memory_of_a_processor_fits_into_each_kind_of_gpu(tmp_path: Path) -> None:
    """On one with little shared memory, and on one with tensor memory; `benchmarks.compile_kernels` has all."""
    result = compiled_by(HARDEST, tmp_path)
    assert result.stdout.count("._encode") == 3, "int8 everywhere, fp8 where there is some"
    assert result.stdout.count("._attend") == 2 and "._multiply" in result.stdout
    assert result.stdout.endswith(" 0\n"), result.stdout + result.stderr


def compiled_by(code: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    """Runs a script, as Triton reads a kernel's source from its file, with the compiler."""
    script = directory / "script.py"
    script.write_text(code)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONG_DEADLINE_S,
    )
