"""Which files of tests are imported for a selection, and the order of files."""

from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent
SYSTEM_ROOMS = ("clients", "dashboard", "e2e", "fuzz", "launcher")
"""Rooms whose tests start whole systems and wait for them."""
LONGEST_FILES = ("e2e/test_ray.py", "e2e/test_openapi.py")
"""They begin first, so that none runs on alone."""


def may_match(word: str, file: Path) -> bool:
    """Returns whether `-k WORD` may select tests of a file: if the word is a room, only where the room is named.

    The files in `tests/` itself may always: their rows are rooms and files.
    """
    path = file.relative_to(ROOT)
    if not word.isidentifier() or not (ROOT / word).is_dir() or len(path.parts) == 1 or path.suffix != ".py":
        return True
    return word in str(path) or word in file.read_text().lower()


def mixed(files: Iterable[Path]) -> list[Path]:
    """Orders files so that files that wait for systems and files that compute lie evenly among each other.

    Of three files that run at a time, one or two then mostly have a processor while another waits.
    """
    rooms: dict[bool, list[Path]] = {True: [], False: []}
    for file in dict.fromkeys(files):
        path = file.relative_to(ROOT)
        rooms[path.parts[0] in SYSTEM_ROOMS].append(path)
    rooms[True].sort(key=lambda path: str(path) not in LONGEST_FILES)
    placed = [(place / len(paths), path) for paths in rooms.values() for place, path in enumerate(paths)]
    return [ROOT / path for _, path in sorted(placed, key=lambda each: each[0])]
