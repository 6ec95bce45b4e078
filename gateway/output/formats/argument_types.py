"""Decides whether an argument that a format writes as bare text is a string or JSON, by the tool's schema."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.grammar.pointers import named_by
from gateway.output.tools import Tool

STRING_TYPE = "string"
ALL_TYPES = frozenset({STRING_TYPE, "number", "integer", "boolean", "null", "object", "array"})
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}  # models write these words as well
_MAX_DEPTH = 8  # nested references and unions
_MAX_SCHEMAS = 256  # schemas for one argument in all: references multiply


def argument_types(tools: tuple[Tool, ...], name: str, argument: str) -> frozenset[str]:
    """Returns the JSON types that an argument of a tool may have; all types if no schema describes it."""
    schema = next((tool.parameters for tool in tools if tool.name == name), None) or {}
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or argument not in properties:
        return ALL_TYPES
    return types_of(properties[argument], schema)


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Returns the JSON types that a schema allows; all types if it does not say, or has too many parts."""
    return _types(schema, root, 0, iter(range(_MAX_SCHEMAS)))


def _types(schema: Any, root: Mapping[str, Any], depth: int, left: Iterator[int]) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or next(left, None) is None:
        return ALL_TYPES
    allowed = ALL_TYPES
    given = schema.get("type")
    if isinstance(given, str | list):
        names = [given] if isinstance(given, str) else given
        allowed = frozenset(name for name in names if isinstance(name, str)) & ALL_TYPES
    if isinstance(values := schema.get("enum"), list):
        allowed &= frozenset(map(json_type, values))
    if "const" in schema:
        allowed &= {json_type(schema["const"])}
    for union in ("anyOf", "oneOf"):
        if isinstance(ways := schema.get(union), list):
            allowed &= frozenset().union(*(_types(way, root, depth + 1, left) for way in ways))
    if isinstance(parts := schema.get("allOf"), list):
        for part in parts:
            allowed &= _types(part, root, depth + 1, left)
    if isinstance(reference := schema.get("$ref"), str):
        allowed &= _types(named_by(reference, root), root, depth + 1, left)
    return allowed or ALL_TYPES


def json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return STRING_TYPE
        case list():
            return "array"
    return "object"


def as_json(text: str, types: frozenset[str]) -> str:
    """Returns bare text as JSON: unchanged if it is a value of these types, else as a string."""
    words = text.strip()
    words = _PYTHON_WORDS.get(words, words)
    try:
        kind = json_type(json.loads(words, parse_constant=_refused))
    except (ValueError, RecursionError):
        kind = STRING_TYPE
    fits = kind in types or (kind == "integer" and "number" in types)
    return words if fits and kind != STRING_TYPE else json.dumps(text, ensure_ascii=False)


def _refused(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
