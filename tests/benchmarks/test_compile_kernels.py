"""Kernels are compiled without a GPU: all of them here in one shape each, and what is wrong with one is told."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.kernels.rows import MODULES
from launcher.options import ROOT

PATIENCE = 110  # s

SPILLS = """
import torch, triton
import triton.language as tl
from benchmarks.compile_only import compiling

@triton.jit
def centred(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    row = tl.load(x + at)
    tl.store(y + at, row - tl.sum(row) / N)

@triton.jit
def copied(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.load(x + at))

x = torch.empty(4096, device="meta")
with compiling() as driver:
    for n in (64, 64, 128):
        compiled, error = driver.launch(lambda: copied[(1,)](x, x, N=n))
        print([each.name for each in compiled], error)
    print(driver.launch(lambda: copied[(1,)](x, x, N=100)))
    compiled, error = driver.launch(lambda: centred[(1,)](x, x, N=16384, num_warps=1))
    print(compiled[0].spilled > 0, error)
"""


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=PATIENCE
    )


def test_every_kernel_compiles_without_spilling() -> None:
    """Though these tests' environment asks for the interpreter."""
    result = run("-m", "benchmarks.compile_kernels", "--quick")
    assert result.returncode == 0, result.stdout + result.stderr
    compiled = [
        line.split(" | ") for line in result.stdout.splitlines() if line.startswith("| ") and "---" not in line
    ][1:]
    assert {line[0].removeprefix("| ").partition(".")[0] for line in compiled} == set(MODULES)
    assert all(0 < int(line[3]) <= 255 and line[4] == "0" for line in compiled)
    assert result.stdout.endswith(f"\n{len(compiled)} specializations, of which 0 failed or spill\n")


def test_what_spills_or_does_not_compile_is_told(tmp_path: Path) -> None:
    """And what was compiled before is not told again."""
    script = tmp_path / "spills.py"
    script.write_text(SPILLS)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    lines = result.stdout.splitlines()
    assert lines[:3] == ["['copied'] ", "[] ", "['copied'] "], result.stderr
    assert lines[3].startswith("([], ") and "CompilationError" in lines[3] and "power of 2" in lines[3]
    assert lines[-1] == "True "
