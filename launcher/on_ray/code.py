"""Selects the folders that a deployment copies to its nodes: our packages, some MB; no weights, no `.venv`."""

from pathlib import Path
from typing import Any

COPIED_PACKAGES = (
    "checkpoints",
    "contracts",
    "dashboard",
    "decode_service",
    "engine",
    "gateway",
    "infra",
    "kernels",
    "kvtransfer",
    "launcher",
    "pricing",
    "prefill_service",
    "worker",
)
"""Packages that services import. The libraries of pyproject.toml must be installed on each node of the cluster."""


def runtime_env(root: Path) -> dict[str, Any]:
    """Returns the `runtime_env` of the actors. Ray accepts at most 512 MiB."""
    others = sorted(path.name for path in root.iterdir() if path.name not in COPIED_PACKAGES)
    excludes = [*(f"/{_literal(name)}" for name in others), "**/__pycache__"]
    return {"working_dir": str(root), "excludes": excludes}


def _literal(name: str) -> str:
    """Returns a gitignore(5) pattern that matches only this file name."""
    return "".join(f"\\{letter}" if letter in "*?[]\\ !#" else letter for letter in name)
