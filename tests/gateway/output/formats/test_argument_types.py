"""What an argument may be, by its tool's schema, in bounded time."""

from typing import Any

import pytest

from gateway.output.formats.argument_types import ALL_TYPES, argument_types
from gateway.output.tools import Tool
from tests.effort import lines_run


def types(schema: dict[str, Any], **more: Any) -> frozenset[str]:
    return argument_types((Tool("other"), Tool("f", {"properties": {"a": schema}, **more})), "f", "a")


@pytest.mark.parametrize(
    ("schema", "allowed"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"enum": ["x", 1]}, {"string", "integer"}),
        ({"const": True}, {"boolean"}),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}]}, {"string", "number"}),
        ({"allOf": [{"type": ["string", "null"]}, {"oneOf": [{"type": "null"}]}]}, {"null"}),
        ({"$ref": "#/properties/a"}, ALL_TYPES),
        ({"type": [["string"], {}, "null"]}, {"null"}),
        ({"enum": 5, "anyOf": 5, "allOf": 5, "const": "x"}, {"string"}),
    ],
)
def test_types_are_those_of_the_schema(schema: dict[str, Any], allowed: set[str]) -> None:
    assert types(schema, **{"$defs": {"n": {"type": "number"}}}) == allowed


def test_who_is_not_described_may_be_anything() -> None:
    assert argument_types((Tool("f", {"properties": {"a": {"type": "null"}}}),), "f", "b") == ALL_TYPES
    assert argument_types((Tool("f"),), "f", "a") == argument_types((), "f", "a") == ALL_TYPES


def test_references_that_multiply_take_no_longer() -> None:
    """Without a bound, 40 references to 40 references to … would be 40 ** 4 schemas."""
    steps = {one: {"anyOf": [{"$ref": f"#/$defs/{after}"}] * 40} for one, after in ("ab", "bc", "cd")}
    found: list[frozenset[str]] = []
    made = lines_run(lambda: found.append(types({"$ref": "#/$defs/a"}, **{"$defs": {**steps, "d": {"type": "null"}}})))
    assert made < 20_000 and found == [ALL_TYPES]
