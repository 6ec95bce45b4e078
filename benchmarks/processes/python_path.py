"""Says where a process that we start finds modules: in this checkout, and wherever we find them ourselves."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_path() -> str:
    inherited = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    return os.pathsep.join([str(ROOT), *inherited])
