"""The GPU hour imports nothing that its machine lacks, and no name that its versions of PyTorch and Triton have not."""

import ast
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from benchmarks.gpu_hour.packages import ENGINE, HANDOFF, PRESENT_PACKAGES
from benchmarks.gpu_hour.stages import ROOT, STAGES, Stage
from launcher.installing.requirements import base_name
from tests.waiting import LONG_DEADLINE_S

LIBRARIES = ("torch", "triton")
FOLDERS = ("engine", "kernels", "worker", "benchmarks", "tests/kernels", "tests/engine")
KNOWN_NAMES = Path(__file__).with_name("oldest_names.txt")
"""Names that the oldest supported versions of PyTorch and Triton (`packages.OLDEST`) have."""
GONE = {"asynchat", "asyncore", "distutils", "imp", "smtpd"}
"""Modules that Python 3.12 has no more."""

# Imports what it is given, and prints what goes wrong.
PROBE = """
import importlib, json, sys
wrong = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except Exception as error:
        wrong[name] = repr(error)
print(json.dumps(wrong))
"""


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", base_name(requirement))


def with_requirements(packages: Iterable[str]) -> set[str]:
    """These packages and all that they require, as far as it is installed here."""
    found: set[str] = set()
    left = list(packages)
    while left:
        name = name_of(left.pop())
        if name in found:
            continue
        try:
            required = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        left += [each for each in required if "extra ==" not in each]
    return found


def lay_out(site: Path, packages: Iterable[str]) -> None:
    """Makes a directory that has these packages, what they require, and nothing else."""
    site.mkdir()
    for name in with_requirements(packages):
        found = distribution(name)
        own = [part.parts for part in found.files or () if part.parts[0] not in ("..", "__pycache__")]
        for top in sorted({parts[0] for parts in own}):
            if not (site / top).exists():  # two packages may share a folder
                (site / top).symlink_to(Path(str(found.locate_file(top))))


def modules_of(stage: Stage) -> set[str]:
    """What a stage's process imports first: a module that is run, or tests and what pytest reads beside them."""
    assert stage.command[0] == "-m"
    if stage.command[1] != "pytest":
        package = (ROOT / stage.command[1].replace(".", "/")).is_dir()
        return {stage.command[1] + (".__main__" if package else "")}
    found = {ROOT / "tests" / "conftest.py"}
    ignored = [ROOT / part.removeprefix("--ignore=") for part in stage.command if part.startswith("--ignore=")]
    for part in stage.command:
        if part.startswith("tests/"):
            place = ROOT / part.partition("::")[0]
            files = [place] if place.is_file() else [*place.rglob("test_*.py"), *place.rglob("conftest.py")]
            found |= {each for each in files if not any(each.is_relative_to(place) for place in ignored)}
            found |= {parent / "conftest.py" for parent in place.parents}
    return {".".join(each.relative_to(ROOT).with_suffix("").parts) for each in found if each.exists()}


def probe(stages: Iterable[Stage], needs: Iterable[str], tmp_path: Path) -> dict[str, str]:
    """What goes wrong where a machine has what it is taken to have, and the wheels that these stages need."""
    lay_out(tmp_path / "site", (*PRESENT_PACKAGES, *needs))
    modules = sorted({"pytest", *(module for stage in stages for module in modules_of(stage))})
    result = subprocess.run(
        [sys.executable, "-S", "-c", PROBE, json.dumps(modules)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "site")])},
        capture_output=True,
        text=True,
        timeout=LONG_DEADLINE_S,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, str] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("needs", [(), ENGINE, HANDOFF], ids=["nothing", "engine", "handoff"])
def test_stages_import_what_is_there_and_what_they_say_they_need(needs: tuple[str, ...], tmp_path: Path) -> None:
    stages = [stage for stage in STAGES if stage.needs == needs]
    assert stages and probe(stages, needs, tmp_path) == {}


@cache
def parsed(path: Path) -> tuple[set[str], set[str]]:
    """The names of `LIBRARIES` that a source uses, and the modules that it imports.

    Raises what Python warns of when it compiles the source.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = ast.parse(path.read_text(), str(path))
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    return used_in(tree), modules


def used_in(tree: ast.Module) -> set[str]:
    stands_for: dict[str, str] = {}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] in LIBRARIES:
                    own = each.asname or each.name.partition(".")[0]
                    stands_for[own] = each.name if each.asname else own
                    found.add(each.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES:
            for each in node.names:
                stands_for[each.asname or each.name] = f"{node.module}.{each.name}"
                found.add(f"{node.module}.{each.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            name = _full(node.value, stands_for)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in ("torch.cuda", "torch.cpu", "torch.ops"):
                stands_for |= {target.id: name for target in targets if isinstance(target, ast.Name)}
    return found | set(_chains(tree, stands_for))


def _chains(node: ast.AST, stands_for: dict[str, str]) -> Iterator[str]:
    name = _full(node, stands_for)
    if name is not None:
        yield name
        return
    for child in ast.iter_child_nodes(node):
        yield from _chains(child, stands_for)


def _full(node: ast.AST, stands_for: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return stands_for.get(node.id)
    if isinstance(node, ast.Attribute):
        before = _full(node.value, stands_for)
        return f"{before}.{node.attr}" if before is not None else None
    return None


def test_used_names_are_known_in_the_oldest_versions() -> None:
    """Tests run with one version, and a GPU may have an older one."""
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    used = {name for path in files for name in parsed(path)[0]}
    unknown = sorted(used - set(KNOWN_NAMES.read_text().split()))
    assert not unknown, f"are these in torch 2.11 and triton 3.6? then add them to {KNOWN_NAMES.name}: {unknown}"


def test_python_312_takes_the_sources_without_a_warning() -> None:
    """What it warns of when it compiles, a newer Python than ours refuses; what it has no more is not imported."""
    folders = (
        "contracts",
        "infra",
        "checkpoints",
        "pricing",
        "kernels",
        "engine",
        "kvtransfer",
        "worker",
        "benchmarks",
    )
    for folder in (*folders, "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not {module.partition(".")[0] for module in parsed(path)[1]} & GONE, path
