"""Lists the names of PyTorch and Triton that our code uses, and keeps those that their oldest versions have.

    python -m benchmarks.gpu_hour.names [--write]

Tests run with one version, and a GPU may have an older one (`packages.OLDEST`). So `oldest_names.txt` has every name
that was found in the oldest, and a test says which of those that are used are not in it. `--write` makes the file: in
an environment with those versions, which need no GPU for that.
"""

import argparse
import ast
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.gpu_hour.packages import OLDEST
from benchmarks.gpu_hour.stages import ROOT

LIBRARIES = ("torch", "triton")
FOLDERS = ("engine", "kernels", "worker", "benchmarks", "tests/kernels", "tests/engine")
KNOWN = Path(__file__).with_name("oldest_names.txt")


def used() -> set[str]:
    """Returns the full names of all that our files take from `LIBRARIES`, such as `torch.cuda.Event`."""
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return {name for path in files for name in used_in(ast.parse(path.read_text()))}


def used_in(tree: ast.Module) -> set[str]:
    """Returns the same of one file. A name that another stands for, as in `cuda = torch.cuda`, is followed."""
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
    """Yields the longest chains of attributes below a node."""
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


def is_there(name: str) -> bool:
    """Tells whether the installed versions have a name. What is behind a property is not looked at: it needs a GPU."""
    parts = name.split(".")
    found: Any = import_module(parts[0])
    for index, part in enumerate(parts[1:], 2):
        if isinstance(getattr(type(found), part, None), property):
            return True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not hasattr(found, part):
                try:
                    import_module(".".join(parts[:index]))
                except ImportError:
                    return False
            found = getattr(found, part)
    return True


def known() -> set[str]:
    """Returns the names that the oldest versions have."""
    return set(KNOWN.read_text().split())


def main() -> int:
    """Prints the names that are missing here, and writes those that are not; returns 1 if some are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_hour.names", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"make {KNOWN.name}, with the oldest versions installed")
    given = parser.parse_args()
    names = sorted(used())
    there = [name for name in names if is_there(name)]
    print("\n".join(f"not here: {name}" for name in names if name not in there))
    if given.write:
        for library in LIBRARIES:
            if not version(library).startswith(f"{OLDEST[library]}."):
                print(f"error: --write: {library} is {version(library)}, not {OLDEST[library]}", file=sys.stderr)
                return 2
        KNOWN.write_text("\n".join(there) + "\n")
    return int(len(there) < len(names))


if __name__ == "__main__":
    sys.exit(main())
