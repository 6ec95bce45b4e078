"""Reads the dependencies from pyproject.toml and constraints.txt, and computes the stamp of an installation.

Only the standard library: this runs before anything is installed. `python -m launcher.installing.requirements
[EXTRA ...]` prints what `./baton` would give to pip.
"""

import hashlib
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def requirements(root: Path, extras: Sequence[str]) -> list[str]:
    """Returns the dependencies of pyproject.toml, with the dependencies of `extras`, in pip's format."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    wanted: list[str] = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return wanted


def pins(root: Path) -> dict[str, str]:
    lines = (root / "constraints.txt").read_text().splitlines()
    return dict(line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))


def stamp(root: Path, settings: Sequence[str]) -> str:
    """Returns a digest of everything that decides the installation: dependencies, pins and `settings`."""
    digest = hashlib.sha256()
    for part in settings:
        digest.update(part.encode() + b"\0")
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    digest.update(repr((project["dependencies"], project["optional-dependencies"])).encode())
    digest.update(repr(sorted(pins(root).items())).encode())
    return digest.hexdigest()


def base_name(requirement: str) -> str:
    """Returns the package name of a requirement: `uvicorn` of `uvicorn>=0.35; …`."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return match[0].lower()


if __name__ == "__main__":
    print("\n".join(requirements(Path(__file__).resolve().parents[2], sys.argv[1:])))
