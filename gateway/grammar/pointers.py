"""Resolves references inside a JSON schema."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

MAX_PLACE_DIGITS = 9  # Python refuses to read integers of thousands of digits


def named_by(reference: Any, root: Mapping[str, Any]) -> Any:
    """Returns the part of `root` that a reference such as `#/$defs/pet` names, or None."""
    if reference == "#":
        return root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for step in unquote(reference[2:]).split("/"):
        if isinstance(found, Mapping):
            found = found.get(step.replace("~1", "/").replace("~0", "~"))
        elif isinstance(found, list) and _is_place(step) and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found


def _is_place(step: str) -> bool:
    return step.isdecimal() and len(step) <= MAX_PLACE_DIGITS
