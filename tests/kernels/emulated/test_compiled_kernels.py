"""Compiled kernels give their references' results, and a compiler's mistake would be seen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.options import ROOT
from tests.waiting import LONG_DEADLINE_S

pytest.importorskip("triton")
KERNELS = ("rope_and_store", "quantized_norm_rows", "experts_prefill", "quantized_row_product")
"""In-place writes and sums over a block; asynchronous copies; products of a warp group in bf16, in int8 and in fp8."""

BROKEN = r"""
import re
import torch
from tests.kernels.emulated.__main__ import check
from benchmarks.kernels.rows import rows
from tests.kernels.emulated.driver import emulating

def found(sm, kernel, pattern, into):
    with emulating(sm) as driver:
        counts = []
        def change(ptx):
            changed, count = re.subn(pattern, into, ptx)
            counts.append(count)
            return changed
        driver.change = change
        wanted = next(iter(rows("tiny", [kernel])))
        error = check(driver, wanted, torch.bfloat16)
        assert sum(counts), f"no {pattern} in {kernel}"
        print(error.partition("(")[0])

found(80, "quantized_norm_rows", r"bar\.sync\s+0;", "")
found(80, "paged_decode_attention", r"cp\.async\.wait_group\s+\d;", "cp.async.wait_group 6;")
found(90, "experts_prefill", r"bar\.sync\s+0;", "")
"""


def emulate(*command: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=LONG_DEADLINE_S,
    )  # fmt: skip


def test_kernels_give_the_results_of_their_references() -> None:
    chosen = [word for kernel in KERNELS for word in ("--kernel", kernel)]
    result = emulate("-m", "tests.kernels.emulated", "--sm", "90", *chosen)
    assert result.returncode == 0, result.stdout + result.stderr
    right = {line.split(" | ")[0] for line in result.stdout.splitlines() if "| right |" in line}
    assert right == {f"| {kernel}" for kernel in KERNELS} and result.stdout.endswith(" right, 0 wrong, 0 left out\n")


def test_a_compiler_that_forgets_a_barrier_or_a_wait_is_noticed(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text(BROKEN)
    result = emulate(str(script))
    lines = result.stdout.splitlines()
    assert len(lines) == 3 and all(line.startswith("Fault: ") for line in lines), result.stdout + result.stderr
