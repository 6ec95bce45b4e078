"""Hot loops are found in machine code that the compiler makes here, and budgets of them are held."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.kernels.budgets import BUDGETS, RATES_BY_SM, Budget, affordable
from benchmarks.kernels.rows import KERNELS
from benchmarks.simulated.machine_code import Loop
from tests.benchmarks.test_compile_kernels import compiled_by

LOOPS = """
import dataclasses, json, torch, triton
import triton.language as tl
from benchmarks.simulated.compile_only import compiling
from benchmarks.simulated.machine_code import disassembled, hot_loops

@triton.jit
def multiplied(x, w, y, turns, ROWS: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr):
    row, column, depth = tl.arange(0, ROWS), tl.arange(0, TILE), tl.arange(0, DEPTH)
    total = tl.zeros([ROWS, TILE], tl.float32)
    for turn in range(turns):
        left = tl.load(x + row[:, None] * 4096 + turn * DEPTH + depth[None, :])
        right = tl.load(w + column[None, :] * 4096 + turn * DEPTH + depth[:, None])
        total = tl.dot(left, right, total)
    tl.store(y + row[:, None] * TILE + column[None, :], total)

@triton.jit
def summed(x, y, turns, N: tl.constexpr):
    at, total = tl.arange(0, N), 0.0
    for turn in range(turns):
        total += tl.sum(tl.load(x + turn * N + at).to(tl.float32) * total)
    tl.store(y, total)

@triton.jit
def crowded(x, y, turns, N: tl.constexpr):
    at = tl.arange(0, N)
    row = tl.load(x + at)
    for turn in range(turns):
        row = tl.exp(row - tl.max(row) - tl.load(x + turn * N + at))
    tl.store(y + at, row)

@triton.jit
def straight(x, y, N: tl.constexpr):
    tl.store(y + tl.arange(0, N), tl.load(x + tl.arange(0, N)))

half, single = (torch.empty(4096, 4096, dtype=dtype, device="meta") for dtype in (torch.bfloat16, torch.float32))
works = {
    "multiplied": lambda: multiplied[(1,)](half, half, single, 9, ROWS=64, TILE=64, DEPTH=64, num_warps=4),
    "summed": lambda: summed[(1,)](half, single, 9, N=1024, num_warps=4),
    "crowded": lambda: crowded[(1,)](single, single, 9, N=1 << 14, num_warps=1),
    "straight": lambda: straight[(1,)](single, single, N=64),
}
found = {}
with compiling() as driver:
    for driver.sm, names in ((80, list(works)), (90, ["multiplied"])):
        for name in names:
            (compiled,), error = driver.launch(works[name])
            assert not error, error
            loops = hot_loops(disassembled(compiled.code))
            found[f"{name} {driver.sm}"] = [dataclasses.asdict(loop) for loop in loops]
print(json.dumps(found))
"""
LOOP = Loop(300, 8, 8 * 16 * 8 * 16, (16, 8), 0, 2, 1, 20, 0, 0, 1)
BUDGET = Budget("a", {}, "b", 90, instructions=38.0, barriers=2, shared_stores=1, narrowest_bytes=8, product_waits=1)


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Loop]]:
    result = compiled_by(LOOPS, tmp_path_factory.mktemp("loops"))
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    return {
        name: [Loop(**{**each, "load_bytes": tuple(each["load_bytes"])}) for each in every]
        for name, every in found.items()
    }


@pytest.mark.parametrize("sm", [80, 90])
def test_a_loop_of_products_has_its_multiply_adds_whatever_instruction_makes_them(
    loops: dict[str, list[Loop]], sm: int
) -> None:
    """A turn multiplies 64 x 64 x 64 in four warps, and copies two tiles of 8 KiB by 128 threads."""
    (loop,) = loops[f"multiplied {sm}"]
    turns = loop.multiply_adds * 4 / 64**3
    assert turns >= 1 and turns == int(turns), "a loop may be unrolled"
    assert loop.weights(64) == turns * 64 * 64 / 128
    assert loop.tensor == turns * (32 if sm == 80 else 4), "of 16 x 8 x 16 in a warp, or 64 x 64 x 16 in four warps"
    assert loop.load_bytes == (16,) * int(turns * 8)
    assert loop.barriers > 0 and loop.instructions > loop.tensor + 8
    assert (loop.shared_loads > 0) == (sm == 80) or loop.shared_loads < loop.tensor * 2
    assert (loop.conversions, loop.shuffles, loop.spills) == (0, 0, 0)


def test_without_products_the_longest_innermost_loop_is_hot(loops: dict[str, list[Loop]]) -> None:
    """Its sum passes from lane to lane, and from warp to warp through shared memory behind barriers."""
    (loop,) = loops["summed 80"]
    assert loop.tensor == loop.multiply_adds == 0
    assert loop.shuffles >= 5 and loop.barriers >= 2 and loop.shared_stores >= 1 and loop.shared_loads >= 1
    assert min(loop.load_bytes) == 16 and loop.spills == 0


def test_spilled_registers_are_counted_and_code_without_a_loop_has_none(loops: dict[str, list[Loop]]) -> None:
    assert loops["crowded 80"][0].spills > 0
    assert loops["straight 80"] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"instructions": 310}, ["38.75 instructions, beyond 38.0"]),
        ({"barriers": 3}, ["3 barriers, beyond 2"]),
        ({"shared_stores": 2}, ["2 stores to shared memory, beyond 1"]),
        ({"load_bytes": (16, 4)}, ["a load of 4 bytes, narrower than 8"]),
        ({"load_bytes": ()}, []),
        ({"product_waits": 16}, ["16 waits for products, beyond 1"]),
        ({"spills": 1}, ["1 accesses to spilled registers"]),
    ],
)
def test_what_exceeds_a_budget_is_told(change: dict[str, object], said: list[str]) -> None:
    assert list(BUDGET.exceeded(Loop(**{**asdict(LOOP), **change}))) == said


def test_instructions_are_those_of_a_weight_where_rows_are_given() -> None:
    """8 products of 16 x 8 x 16 by 8 rows each: 64 weights of each of 32 threads."""
    assert LOOP.weights(8) == 64
    assert replace(BUDGET, rows=8).share(LOOP) == 300 / 64


def test_every_budget_has_a_row_of_the_table() -> None:
    for budget in BUDGETS:
        shapes = [shape for size in ("full", "compiled") for shape in KERNELS[budget.kernel].shapes(size)]
        assert budget.row in [shape.arguments for shape in shapes], budget
        assert budget.sm in RATES_BY_SM


def test_what_is_affordable_follows_from_rates() -> None:
    """132 processors start 4 x 32 instructions in each of 1.83e9 clocks; memory brings 3.35e12 bytes meanwhile."""
    assert affordable(90, 0.5) == pytest.approx(132 * 128 * 1.83e9 / 6.7e12)
    assert affordable(90, 1.0) == 2 * affordable(90, 0.5)


STRICTER = """
import sys
from dataclasses import replace
from benchmarks import compile_kernels
from benchmarks.kernels import loop_table
loop_table.BUDGETS = tuple(replace(each, instructions=1.0) for each in loop_table.BUDGETS)
sys.argv[1:] = ["--budgets", "--sm", "90", "--kernel", "quantized_row_product"]
sys.exit(compile_kernels.main())
"""


def test_budgets_are_held_and_stricter_ones_end_in_status_1(tmp_path: Path) -> None:
    """Of one kernel, compiled once: what exceeds one instruction is told, and is within the real budgets."""
    result = compiled_by(STRICTER, tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "compilation tools" in result.stdout.splitlines()[0]
    assert "| quantized_row_product._multiply | " in result.stdout.split("| instructions |")[1]
    budgets = [each for each in BUDGETS if (each.kernel, each.sm) == ("quantized_row_product", 90)]
    told = re.findall(r"sm_90: (\S+) (.*)$", result.stdout, re.MULTILINE)
    assert [what for _, what in told] == ["instructions, beyond 1.0"] * len(budgets), told
    assert all(float(count) <= budget.instructions for (count, _), budget in zip(told, budgets, strict=True)), told
