"""Finds what a reference within a JSON schema names."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def named_by(reference: Any, root: Mapping[str, Any]) -> Any:
    """Returns the part of `root` that a reference such as `#/$defs/pet` names; None where it names none."""
    if reference == "#":
        return root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for step in unquote(reference[2:]).split("/"):
        if isinstance(found, Mapping):
            found = found.get(step.replace("~1", "/").replace("~0", "~"))
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found
