"""Keeps the tables of tuned launch configurations: by a device's name, a kernel and a shape. Without torch.

A release may ship a table beside this file. A host's own measurements are in its cache directory, which a container
keeps in a volume, and come before shipped entries.
"""

import json
import os
from pathlib import Path
from typing import Any

SHIPPED_FILE = Path(__file__).with_name("tuned.json")

Shapes = dict[str, dict[str, Any]]  # fields of a `Config` by shape


def own_file() -> Path:
    """Returns this host's own table: `baton/tuned.json` in `$XDG_CACHE_HOME` or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "baton" / "tuned.json"


def of_device(name: str) -> dict[str, Shapes]:
    """Returns the shapes of each kernel that were tuned on devices of this name."""
    found: dict[str, Shapes] = {}
    for path in (SHIPPED_FILE, own_file()):
        for kernel, shapes in _read(path).get(name, {}).items():
            found.setdefault(kernel, {}).update(shapes)
    return found


def keep(name: str, kernel: str, shape: str, config: dict[str, Any]) -> None:
    """Writes an entry into this host's own table. Readers see the old table or the new table, never a part."""
    path = own_file()
    table = _read(path)
    table.setdefault(name, {}).setdefault(kernel, {})[shape] = config
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    part.replace(path)


def _read(path: Path) -> dict[str, dict[str, Shapes]]:
    return json.loads(path.read_text()) if path.exists() else {}
