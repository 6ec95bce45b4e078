"""A property that a schema does not name may come only where the schema says so, and no schema loses its answers."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from llguidance import LLTokenizer

from checkpoints.grammars import GrammarError, read_tokenizer
from gateway.grammar.closing import MAX_ADDED_NAMES, with_closed_objects
from gateway.grammar.texts import of_json_schema
from tests.engine.grammars.schemas import SCHEMAS
from tests.gateway.grammar.fitting import fits

A: Any = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
B: Any = {"properties": {"b": {"type": "integer"}}, "required": ["b"]}
ITEM = {"$defs": {"Item": {"type": "object", **A}}}
PET = {"type": "object", "properties": {"kind": {"const": "pet"}, "name": {"type": "string"}}, "required": ["kind"]}
CAR = {"type": "object", "properties": {"kind": {"const": "car"}}, "required": ["kind"]}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"

# A schema, texts that fit it, and texts that have a property which it does not name.
CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    "an object": ({"type": "object", **A}, ['{"a": 1}'], ['{"a": 1, "x": 2}']),
    "no type": (A, ['{"a": 1}'], ['{"a": 1, "x": 2}']),
    "no properties at all": ({"type": "object", "properties": {}}, ["{}"], ['{"x": 1}']),
    "in a list": ({"type": "array", "items": A}, ['[{"a": 1}]'], ['[{"a": 1, "x": 2}]']),
    "in an object": ({"properties": {"o": A}}, ['{"o": {"a": 1}}', "{}"], ['{"o": {"a": 1, "x": 2}}']),
    "in a map": ({"type": "object", "additionalProperties": A}, ['{"k": {"a": 1}}'], ['{"k": {"a": 1, "x": 2}}']),
    "a pattern": ({"patternProperties": {"^p_": {"type": "null"}}}, ['{"p_1": null}'], ['{"x": null}']),
    "a pattern beside": ({**A, "patternProperties": {"^p_": {}}}, ['{"a": 1, "p_1": 2}'], ['{"a": 1, "x": 2}']),
    "required, not listed": ({**A, "required": ["a", "z"]}, ['{"a": 1, "z": []}'], ['{"a": 1, "z": 1, "x": 2}']),
    "a reference elsewhere": (
        {"$ref": "#/components/schemas/Item", "components": {"schemas": ITEM["$defs"]}},
        ['{"a": 1}'],
        ['{"a": 1, "x": 2}'],
    ),
    "a reference with a percent sign": (
        {"$ref": "#/$defs/an%20item", "$defs": {"an item": A}},
        ['{"a": 1}'],
        ['{"a": 1, "x": 2}'],
    ),
    "a reference into a list": (
        {"type": "array", "prefixItems": [A], "items": {"$ref": "#/prefixItems/0"}, "minItems": 2},
        ['[{"a": 1}, {"a": 2}]'],
        ['[{"a": 1}, {"a": 2, "x": 3}]'],
    ),
    "a reference to the whole": (
        {**A, "properties": {**A["properties"], "in": {"$ref": "#"}}},
        ['{"a": 1, "in": {"a": 2}}'],
        ['{"a": 1, "in": {"a": 2, "x": 3}}'],
    ),
    "a reference and more": (
        {"$ref": "#/$defs/Item", **B, **ITEM},
        ['{"a": 1, "b": 2}'],
        ['{"a": 1, "b": 2, "x": 3}'],
    ),
    "a reference and more, draft 7": (
        {"$schema": DRAFT_7, "$ref": "#/definitions/Item", **B, "definitions": ITEM["$defs"]},
        ['{"a": 1, "b": 2}'],
        ['{"a": 1, "b": 2, "x": 3}'],
    ),
    "required by another part": (
        {"$ref": "#/$defs/Item", "required": ["z"], "properties": {"b": {}}, **ITEM},
        ['{"a": 1, "b": 2, "z": 3}', '{"a": 1, "z": 3}'],
        ['{"a": 1, "b": 2, "z": 3, "x": 4}'],
    ),
    "inheritance": (
        {"allOf": [{"$ref": "#/$defs/Item"}, B], **ITEM},
        ['{"a": 1, "b": 2}'],
        ['{"a": 1, "b": 2, "x": 3}'],
    ),
    "inherited and alone": (
        {"properties": {"child": {"allOf": [{"$ref": "#/$defs/Item"}, B]}, "one": {"$ref": "#/$defs/Item"}}, **ITEM},
        ['{"child": {"a": 1, "b": 2}, "one": {"a": 1}}'],
        ['{"child": {"a": 1, "b": 2}, "one": {"a": 1, "b": 2}}', '{"child": {"a": 1, "b": 2, "x": 3}}'],
    ),
    "any of objects": ({"anyOf": [A, B]}, ['{"a": 1}', '{"b": 2}'], ['{"a": 1, "b": 2}', '{"a": 1, "x": 2}']),
    "any of these references beside": (
        {"properties": {"id": {"type": "integer"}}, "anyOf": [{"$ref": "#/$defs/Item"}, B], **ITEM},
        ['{"id": 0, "a": 1}', '{"b": 2}'],
        ['{"id": 0, "a": 1, "b": 2}', '{"id": 0, "a": 1, "x": 2}'],
    ),
    "at least one of two": (
        {"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a": 1}', '{"b": 1}', '{"a": 1, "b": 1}'],
        ["{}", '{"a": 1, "x": 1}'],
    ),
    "all of any": (
        {"allOf": [{"anyOf": [A, B]}, {"properties": {"c": {}}}]},
        ['{"a": 1, "c": 2}', '{"b": 1, "c": 2}'],
        ['{"a": 1, "c": 2, "x": 3}'],
    ),
    "one of tagged": (
        {"oneOf": [{"$ref": "#/$defs/Pet"}, {"$ref": "#/$defs/Car"}], "$defs": {"Pet": PET, "Car": CAR}},
        ['{"kind": "pet", "name": "Bo"}', '{"kind": "car"}'],
        ['{"kind": "car", "name": "Bo"}', '{"kind": "pet", "x": 1}'],
    ),
}  # fmt: skip

# Schemas that say themselves what else may come, or of which nothing is named.
OPEN: dict[str, tuple[Any, str]] = {
    "true": ({**A, "additionalProperties": True}, '{"a": 1, "x": []}'),
    "a schema": ({**A, "additionalProperties": {"type": "null"}}, '{"a": 1, "x": null}'),
    "in a part": ({"allOf": [{**A, "additionalProperties": True}, B]}, '{"a": 1, "b": 2, "x": 3}'),
    "in a branch": ({"anyOf": [{**A, "additionalProperties": True}, B]}, '{"a": 1, "x": 3}'),
    "in what is inherited": (
        {"allOf": [{"$ref": "#/$defs/Any"}, B], "$defs": {"Any": {**A, "additionalProperties": True}}},
        '{"a": 1, "b": 2, "x": 3}',
    ),
    "any object": ({"type": "object"}, '{"x": {"y": 1}}'),
    "any object with a name": ({"type": "object", "required": ["a"]}, '{"a": 1, "x": {"y": 1}}'),
    "anything": ({}, '{"x": {"y": 1}}'),
    "anything in an object": ({"properties": {"o": {}}}, '{"o": {"x": 1}}'),
    "more than are named": ({"properties": {"a": {}}, "required": ["a"], "minProperties": 2}, '{"a": 1, "x": 2}'),
    "listed values": ({"properties": {"a": {}}, "enum": [{"a": 1, "x": 2}]}, '{"a":1,"x":2}'),
    "a definition by its id": (
        {"allOf": [{"$ref": "item"}, B], "$id": "http://localhost/", "$defs": {"Item": {"$id": "item", **A}}},
        '{"a": 1, "b": 2, "x": 3}',
    ),
}


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> LLTokenizer:
    return read_tokenizer(model, 443)


@pytest.mark.parametrize("name", CASES)
def test_only_what_is_named_may_come(name: str, tokenizer: LLTokenizer) -> None:
    schema, good, bad = CASES[name]
    closed, open = of_json_schema(schema), of_json_schema(schema, closes=False)
    for text in good:
        jsonschema.validate(json.loads(text), schema)
        assert fits(tokenizer, closed, text), text
    for text in bad:
        assert not fits(tokenizer, closed, text), text
        if text != "{}":
            assert fits(tokenizer, open, text), f"{text}: without closing it may come"


@pytest.mark.parametrize("name", OPEN)
def test_what_says_that_others_may_come_stays_open(name: str, tokenizer: LLTokenizer) -> None:
    schema, text = OPEN[name]
    jsonschema.validate(json.loads(text), {key: value for key, value in schema.items() if name[:5] != "a def"})
    assert fits(tokenizer, of_json_schema(schema), text)


def test_a_closed_schema_is_closed_already() -> None:
    for name, schema in SCHEMAS.items():
        closed = with_closed_objects(schema)
        assert with_closed_objects(closed) == closed, name


def test_compositions_without_end_are_refused() -> None:
    wide = {
        "anyOf": [{"properties": {f"p{i}": {}}} for i in range(300)],
        "properties": {f"q{i}": {} for i in range(300)},
    }
    with pytest.raises(GrammarError, match=f"more than {MAX_ADDED_NAMES}"):
        with_closed_objects(wide)
    ring = {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}, A]}, "b": {"allOf": [{"$ref": "#/$defs/a"}, B]}}}
    assert with_closed_objects({**ring, "$ref": "#/$defs/a"})
    deep = {
        "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, A]} for i in range(2000)},
        "$ref": "#/$defs/d0",
    }
    with pytest.raises(GrammarError, match="deep"):
        of_json_schema(deep)
