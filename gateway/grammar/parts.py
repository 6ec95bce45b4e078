"""Rewrites each part of a JSON schema, from the innermost subschemas outwards."""

from collections.abc import Callable
from typing import Any

MAX_PARTS = 1024  # larger schemas stay unchanged, since the walk blocks the event loop

_SINGLE_KEYS = ("additionalProperties", "items", "not", "propertyNames", "contains", "if", "then", "else")
_LIST_KEYS = ("anyOf", "allOf", "oneOf", "prefixItems")
_MAP_KEYS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def with_each_part(schema: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Returns the schema, rewritten or unchanged. `change` gets parts whose subschemas were rewritten before."""
    count = 0

    def walked(part: Any) -> Any:
        nonlocal count
        count += 1
        if not isinstance(part, dict) or count > MAX_PARTS:
            return part
        found = {}
        for key, value in part.items():
            if key in _SINGLE_KEYS and isinstance(value, dict):
                value = walked(value)
            elif key in _LIST_KEYS and isinstance(value, list):
                value = [walked(each) for each in value]
            elif key in _MAP_KEYS and isinstance(value, dict):
                value = {name: walked(each) for name, each in value.items()}
            found[key] = value
        return change(found)

    found = walked(schema)
    return found if isinstance(found, dict) and count <= MAX_PARTS else schema
