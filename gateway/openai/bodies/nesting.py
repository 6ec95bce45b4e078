"""Bounds the nesting of JSON and counts its values, so that recursive code is fast enough."""

from collections.abc import Iterable
from typing import Any

MAX_NESTING_LEVELS = 64  # levels of objects and lists


def is_too_deep(value: Any) -> bool:
    """Returns whether plain data has more than `MAX_NESTING_LEVELS` levels."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_NESTING_LEVELS):
        level = [one for outer in level for one in _values(outer) if isinstance(one, (dict, list))]
    return bool(level)


def values(value: Any, limit: int) -> int:
    """Counts the values in plain data, but only until the count exceeds `limit`."""
    count, level = 0, [value] if isinstance(value, (dict, list)) else []
    while level and count <= limit:
        count += sum(map(len, level))
        if count <= limit:
            level = [one for outer in level for one in _values(outer) if isinstance(one, (dict, list))]
    return count


def _values(outer: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return outer.values() if isinstance(outer, dict) else outer
