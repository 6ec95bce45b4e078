"""A public class name is one thing in the whole product, and a constant's name says its quantity."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.test_imports import ALLOWED, ROOT

PRODUCT = sorted(ALLOWED.keys() - {"benchmarks", "demo_model", "testing", "tests"})
MAX_ONE_WORD_CONSTANTS = 90
"""Proper names such as `VERSION` need no second word."""


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def constants(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        yield from (each.id for each in targets if isinstance(each, ast.Name) and each.id.lstrip("_").isupper())


def test_a_public_class_name_stands_in_one_file() -> None:
    found = defaultdict(list)
    for path, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_few_constants_have_a_name_of_one_word() -> None:
    found = [f"{path}: {name}" for path, tree in modules() for name in constants(tree) if "_" not in name.strip("_")]
    assert len(found) <= MAX_ONE_WORD_CONSTANTS, found
