"""Says what of this folder goes to the nodes with a deployment: our packages, some MB; no weights, no `.venv`."""

from pathlib import Path
from typing import Any

PACKAGES = (
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
"""What services import. The libraries of pyproject.toml have to be in the Python of each node's Ray."""


def runtime_env(root: Path) -> dict[str, Any]:
    """Returns the runtime environment of a deployment's actors: Ray takes at most 512 MiB (RAY_RUNTIME_ENV…)."""
    others = sorted(path.name for path in root.iterdir() if path.name not in PACKAGES)
    excludes = [*(f"/{_literal(name)}" for name in others), "**/__pycache__"]
    return {"working_dir": str(root), "excludes": excludes}


def _literal(name: str) -> str:
    """Writes a file name as a pattern of gitignore(5) that matches only it."""
    return "".join(f"\\{letter}" if letter in "*?[]\\ !#" else letter for letter in name)
