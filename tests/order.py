"""Which files of tests are imported for a selection, and which files begin first."""

from pathlib import Path

ROOT = Path(__file__).parent
# They start whole systems and wait for them: they begin first, the longest before all, so that none runs on alone.
FIRST_PATHS = (
    "e2e/test_ray.py",
    "e2e/test_openapi.py",
    "launcher/installing",
    "launcher/test_up.py",
    "e2e",
    "clients",
    "launcher",
    "fuzz",
)


def may_match(word: str, file: Path) -> bool:
    """Returns whether `-k WORD` may select tests of a file: if the word is a room, only where the room is named.

    The files in `tests/` itself may always: their rows are rooms and files.
    """
    path = file.relative_to(ROOT)
    if not word.isidentifier() or not (ROOT / word).is_dir() or len(path.parts) == 1 or path.suffix != ".py":
        return True
    return word in str(path) or word in file.read_text().lower()


def turn(file: Path) -> int:
    """Returns a sort key: the number of the first entry of `FIRST_PATHS` that holds the file."""
    path = file.relative_to(ROOT)
    return next((turn for turn, first in enumerate(FIRST_PATHS) if path.is_relative_to(first)), len(FIRST_PATHS))
