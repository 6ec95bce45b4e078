"""Finds reasons not to change or remove a `.venv`: it belongs to another user, or a process runs from it.

Only the standard library: this runs before anything is installed.
"""

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

PROC_DIRECTORY = Path("/proc")


def owned_by_another(venv: Path, user: int) -> str:
    """Returns a sentence if `.venv` belongs to another user than `user`, else ''."""
    owner = venv.stat().st_uid
    if owner == user:
        return ""
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"user {owner}"
    return (
        f"{venv} belongs to {name} and is not complete: {name} runs ./baton up in this folder, or you use a checkout of"
        " your own"
    )


def reason_to_keep(venv: Path) -> str:
    """Returns why a `.venv` of another Python must stay, or ''."""
    other = "a checkout of your own has a .venv of its own, and BATON_PYTHON=PATH names the Python of this one"
    if venv.is_symlink():
        return f"{venv} is a link, and was made by another Python: remove the link, or name that Python by BATON_PYTHON"
    python = venv / "bin" / "python"
    try:
        python.stat()
        may_run = os.access(python, os.X_OK)
    except PermissionError:
        may_run = False
    except OSError:
        may_run = True  # a dangling link: such a `.venv` is made again
    if not may_run:
        return f"you may not run {python.resolve()}, the Python of {venv}: {other}"
    if users := ", ".join(map(str, running_from(venv))):
        return f"{venv} was made by another Python, and is in use (processes {users}): stop them first; {other}"
    return ""


def running_from(venv: Path) -> Iterator[int]:
    """Yields the visible processes that the Python of `.venv` runs."""
    place = venv.resolve()
    for entry in PROC_DIRECTORY.glob("[0-9]*"):
        try:
            program = os.fsdecode((entry / "cmdline").read_bytes().partition(b"\0")[0])
        except OSError:
            continue  # ended, or hidden from this user
        if (
            program.startswith("/")
            and int(entry.name) != os.getpid()
            and Path(program).parent.parent.resolve() == place
        ):
            yield int(entry.name)
