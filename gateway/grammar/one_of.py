"""Rewrites `oneOf` in a JSON schema as `anyOf` if both mean the same: no value fits two of its branches.

llguidance accepts `oneOf` only if it can tell that itself, and does not look behind `$ref`, as generated schemas of
tagged unions require. A `oneOf` that stays is refused. Dates are rewritten on the way.
"""

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from gateway.grammar.dates import with_leap_years
from gateway.grammar.parts import with_each_part
from gateway.grammar.pointers import named_by

MAX_ONE_OF_BRANCHES = 16
MAX_REFERENCE_HOPS = 16  # from $ref to $ref

_PYTHON_TYPES = {"string": str, "boolean": bool, "null": type(None), "object": dict, "array": list}


def with_any_of(schema: dict[str, Any]) -> dict[str, Any]:
    return with_each_part(schema, _OneOf(schema).changed)


class _OneOf:
    """Decides for one document which `oneOf` has branches that exclude each other."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root

    def changed(self, schema: dict[str, Any]) -> dict[str, Any]:
        branches = schema.get("oneOf")
        if isinstance(branches, list) and "anyOf" not in schema and self._exclusive(branches):
            schema = {"anyOf" if key == "oneOf" else key: value for key, value in schema.items()}
        return with_leap_years(schema)

    def _exclusive(self, branches: list[Any]) -> bool:
        """Returns whether no value fits two of the branches."""
        if len(branches) > MAX_ONE_OF_BRANCHES:
            return False
        resolved = [self._resolved(branch) for branch in branches]
        return all(self._apart(one, other) for one, other in combinations(resolved, 2))

    def _apart(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Returns whether two branches differ in type, in listed values, or in the values of a required property."""
        types, others = _types(one), _types(other)
        if types is not None and others is not None and not types & others:
            return True
        values, theirs = _values(one), _values(other)
        if values is not None and theirs is not None and not values & theirs:
            return True
        return types == others == {"object"} and any(
            self._property_differs(one, other, name)
            for name in set(_required_properties(one)) & set(_required_properties(other))
        )

    def _property_differs(self, one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> bool:
        values = [_values(self._resolved(each["properties"].get(name))) for each in (one, other)]
        return None not in values and not set.intersection(*[value for value in values if value is not None])

    def _resolved(self, schema: Any) -> dict[str, Any]:
        """Follows a schema's `$ref` in its document. An unresolved reference allows everything."""
        for _ in range(MAX_REFERENCE_HOPS):
            if not isinstance(schema, dict):
                return {}
            if not isinstance(schema.get("$ref"), str):
                return schema
            schema = named_by(schema["$ref"], self._root)
        return {}


def _types(schema: Mapping[str, Any]) -> set[str] | None:
    """Returns the types that values may have, with all numbers as one type; None for any type."""
    given = schema.get("type")
    names: Iterable[Any] | None = [given] if isinstance(given, str) else given if isinstance(given, list) else None
    if names is None:
        values = _values(schema)
        return None if values is None else {name for name, _ in values}
    return {"number" if name == "integer" else str(name) for name in names}


def _values(schema: Mapping[str, Any]) -> set[tuple[str, str]] | None:
    """Returns the values that may fit, each with its type; None if the schema lists none."""
    if "const" in schema:
        return {_value(schema["const"])}
    if isinstance(schema.get("enum"), list):
        return {_value(value) for value in schema["enum"]}
    return None


def _value(value: Any) -> tuple[str, str]:
    name = next((name for name, kind in _PYTHON_TYPES.items() if type(value) is kind), "number")
    return name, repr(float(value)) if name == "number" else repr(value)


def _required_properties(schema: Mapping[str, Any]) -> list[str]:
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(properties, dict):
        return []
    return [name for name in required if isinstance(name, str) and name in properties]
