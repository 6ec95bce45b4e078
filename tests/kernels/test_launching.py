"""Direct launches call the binaries that Triton's launcher would call, with the same arguments."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.runtime import JITFunction

from kernels.launching import DirectLauncher, launched_directly
from kernels.rms_norm import _rms_norm
from launcher.options import ROOT
from tests.waiting import LONG_DEADLINE_S

MIN_DIRECT_LAUNCHES = 100


def test_random_arguments_launch_what_triton_launches(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compare_launches", "--draws", "300"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONG_DEADLINE_S)
    assert result.returncode == 0, result.stdout + result.stderr
    compared, watched = result.stdout.splitlines()
    found = re.search(r"(\d+) of 300 launches were direct", compared)
    assert found is not None and int(found[1]) >= MIN_DIRECT_LAUNCHES
    assert watched.endswith(": [1, 0, 2]"), "a hook sees every launch, and no launch once it is removed"


@pytest.mark.parametrize(("version", "direct"), [("3.6.0", True), ("3.9.1", True), ("3.10.0", False), ("4.0.0", False)])
def test_triton_launches_where_its_version_is_unknown(
    version: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel: Any = JITFunction(_rms_norm.fn)
    monkeypatch.setattr(triton, "__version__", version)
    assert isinstance(launched_directly(kernel), DirectLauncher) is direct
    assert direct or launched_directly(kernel) is kernel


@pytest.mark.interpreted
def test_the_interpreter_is_not_by_passed() -> None:
    assert not isinstance(_rms_norm, DirectLauncher)


def test_every_kernel_that_a_wrapper_launches_is_launched_directly() -> None:
    launched = {(path, name) for path in sorted((ROOT / "kernels").rglob("*.py")) for name in launches_in(path)}
    assert len(launched) > 30
    assert [f"{path}: {name}" for path, name in launched if name not in decorated_in(path)] == []


def launches_in(path: Path) -> Iterator[str]:
    """Yields each NAME of `NAME[grid](…)` or `prepared(NAME, …)` where NAME is a function of the same file."""
    tree = ast.parse(path.read_text())
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (isinstance(node.func, ast.Subscript) or _prepares(node)):
            kernel = node.func.value if isinstance(node.func, ast.Subscript) else node.args[0]
            if isinstance(kernel, ast.Name) and kernel.id in own:
                yield kernel.id


def _prepares(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "prepared"


def decorated_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and node.decorator_list
        and isinstance(node.decorator_list[0], ast.Name)
        and node.decorator_list[0].id == "launched_directly"
    }
