"""Bounds how deep JSON may be nested, so that nothing that walks through it comes to the end of Python's stack."""

from collections.abc import Iterable
from typing import Any

NESTING = 64  # levels of objects and lists


def is_too_deep(value: Any) -> bool:
    """Tells whether plain data has more than `NESTING` levels."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(NESTING):
        level = [one for outer in level for one in _values(outer) if isinstance(one, (dict, list))]
    return bool(level)


def _values(outer: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return outer.values() if isinstance(outer, dict) else outer
