"""An object has as many properties as its schema says, whichever of them may be left out."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from llguidance import LLTokenizer

from checkpoints.grammars import GrammarError, read_tokenizer
from gateway.grammar.counting import MAX_BRANCHES, UNCOUNTED_ERROR, with_counts
from gateway.grammar.texts import of_json_schema
from tests.gateway.grammar.fitting import fits, fitting

NAMES = ("a", "b", "c", "d")
CHOICE = {"required": ["a"]}, {"required": ["b"]}


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> LLTokenizer:
    return read_tokenizer(model, 443)


def right(tokenizer: LLTokenizer, schema: dict[str, Any], texts: list[str]) -> bool:
    """Whether those texts fit the grammar that jsonschema finds right."""
    grammar, judge = of_json_schema(schema), jsonschema.Draft202012Validator(schema)
    wanted = [text for text in texts if judge.is_valid(json.loads(text))]
    if not wanted:
        with pytest.raises(GrammarError, match=r"nsatisfiable|bounds"):
            fits(tokenizer, grammar, texts[0])
        return True
    return fitting(tokenizer, grammar, texts) == wanted


@pytest.mark.parametrize("required", [[], ["b"], ["a", "d"]])
@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": False},
        {"additionalProperties": {"type": "integer"}},
        {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    ],
    ids=["closed", "open", "patterns"],
)
def test_each_number_of_properties(required: list[str], more: dict[str, Any], tokenizer: LLTokenizer) -> None:
    listed = {"properties": {name: {"type": "integer"} for name in NAMES}, "required": required, **more}
    subsets = [names for count in range(5) for names in combinations((*NAMES, "x1"), count)]
    texts = [json.dumps(dict.fromkeys(names, 1)) for names in subsets]
    for least, most in [(1, 9), (2, 4), (3, 3), (0, 2), (0, 0), (4, 9), (2, 1)]:
        assert right(tokenizer, {"type": "object", "minProperties": least, "maxProperties": most, **listed}, texts)
    for bound in ({"minProperties": 2}, {"maxProperties": 2}):
        assert right(tokenizer, {"type": "object", **bound, **listed}, texts)


def test_a_choice_beside_is_kept_to(tokenizer: LLTokenizer) -> None:
    schema = {"properties": {name: {} for name in NAMES[:3]}, "anyOf": [*CHOICE], "maxProperties": 2}
    texts = ['{"a": 1}', '{"b": 1}', '{"c": 1}', '{"a": 1, "c": 2}', '{"a": 1, "b": 2, "c": 3}', "{}"]
    assert right(tokenizer, schema, texts)


def test_objects_below_are_counted(tokenizer: LLTokenizer) -> None:
    inner = {"type": "object", "properties": {name: {} for name in NAMES[:2]}, "minProperties": 1}
    schema = {"type": "array", "items": {"$ref": "#/$defs/inner"}, "$defs": {"inner": inner}}
    assert right(tokenizer, schema, ['[{"a": 1}, {"b": 2}]', '[{"a": 1}, {}]', "[]"])


def test_too_many_choices_stay_as_they_are_for_the_refusal(tokenizer: LLTokenizer) -> None:
    wide = {"properties": {f"p{i}": {} for i in range(20)}, "minProperties": 5, "additionalProperties": False}
    assert with_counts(wide) == wide
    with pytest.raises(GrammarError, match=UNCOUNTED_ERROR):
        fits(tokenizer, of_json_schema(wide), "{}")
    many = {"properties": {f"p{i}": {} for i in range(MAX_BRANCHES)}, "minProperties": 1, "additionalProperties": False}
    assert len(with_counts(many)["anyOf"]) == MAX_BRANCHES


def test_bounds_that_exclude_each_other_take_no_time() -> None:
    """A search of 30 optional properties of which at least 16 and at most 15 come would try 155 million sets."""
    wide = {"properties": {f"p{i}": {} for i in range(30)}, "additionalProperties": False}
    assert with_counts({**wide, "minProperties": 16, "maxProperties": 15}) == {**wide, "enum": []}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}, "required": [["a"], {}, 1], "minProperties": 1},
        {"properties": {"a": {}}, "minProperties": 1, "anyOf": [{}], "allOf": 5},
        {"properties": [1], "patternProperties": {"^a": {}}, "required": ["b"]},
        {"properties": {"a": {"$ref": "#/anyOf/" + "1" * 5000}}, "anyOf": [{}]},
        {"properties": {"a": {"$ref": "#/$defs/0"}, "b": {"$ref": "x"}}, "$defs": [{"properties": {"c": {}}}]},
    ],
)
def test_a_schema_that_is_none_is_left_to_the_check(schema: dict[str, Any]) -> None:
    assert of_json_schema(schema).startswith("start: %json")
