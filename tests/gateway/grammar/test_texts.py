"""Grammars say what their clients asked for, alone and as parts of others, with tokenizers of every kind."""

import json
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLTokenizer

from checkpoints.grammars import GrammarError, compiled, end_of_text, read_tokenizer
from gateway.grammar.texts import (
    literal,
    nested,
    of_choices,
    of_json_object,
    of_json_schema,
    of_regex,
)
from gateway.text.tokenizer import ModelTokenizer
from tests.gateway.grammar.fitting import fits
from tests.gateway.models import byte_level, llama_style, unigram

CHOICES = ["yes", 'say "no"', "line\nbreak\\", "ja, 漢字"]
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> LLTokenizer:
    return read_tokenizer(model, 443)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (of_json_object(), ['{}', '{"a": [1, 2.5, null]}', '{\n  "a": {\n    "b": true\n  }\n}'], ["[]", "{", "1"]),
        (of_json_schema(POINT), ['{"x":1}', '{ "x": -7 }'], ["{}", '{"x":1.5}', '{"x":1,"y":2}', '{"x":1} ']),
        (of_json_schema(POINT | {"x-guidance": {"whitespace_pattern": " ?"}}), ['{"x": 1}'], ['{"x":  1}']),
        (of_json_schema(True), ["1", "null", "[]"], ["", "x"]),
        (of_regex(r"[a-z]+/\d{2}"), ["ab/12"], ["ab/1", "ab/123", "xab/12 "]),
        (of_regex(r"^a\/b\\/$"), ["a/b\\/"], ["a/b/"]),
        (of_regex(r"[\d.]+\[\d\]\\d"), [r"1.5[2]\d"], ["\u0661.5[2]\\d", "1.5[\u0662]\\d", "1.5[2]\\3"]),
        (of_regex("a\nb|é+"), ["a\nb", "éé"], ["a b"]),
        (of_choices(CHOICES), CHOICES, ["y"]),
    ],
)  # fmt: skip
def test_a_text_fits_its_grammar_and_others_do_not(
    grammar: str, good: list[str], bad: list[str], tokenizer: LLTokenizer
) -> None:
    assert [text for text in good if not fits(tokenizer, grammar, text)] == []
    assert [text for text in bad if fits(tokenizer, grammar, text)] == []


def test_parts_of_several_texts_keep_their_names_to_themselves(tokenizer: LLTokenizer) -> None:
    """Both have a rule `a` and a terminal `B`, and braces in strings, regexes and schemas."""
    first = 'start: a "}"\na: B+\nB: "x" | /[}]/'
    second = "start: a\na: B\nB: /[0-9]{2}/\n"
    grammar = f"start: {literal('<')} {nested(first)} {nested(second)} {nested(of_json_schema(POINT))}"
    assert fits(tokenizer, grammar, '<xx}}12{"x": 3}')
    assert not fits(tokenizer, grammar, '<12xx}{"x": 3}')
    assert fits(tokenizer, f"start: {nested(grammar)}", '<x}12{"x": 3}'), "a part has parts"


@pytest.mark.parametrize("make", [byte_level, llama_style, unigram])
def test_tokenizers_of_every_kind_agree_on_texts_and_their_ends(make: Any, tmp_path: Path) -> None:
    directory = make(tmp_path / "model")
    known = ModelTokenizer(directory)
    assert end_of_text(directory) == known.stop_ids != ()
    tokenizer = read_tokenizer(directory, known.vocabulary)
    text = "a brown fox"
    matcher = compiled(tokenizer, of_regex(f" ?{text}"))
    for token in known.encode(text, special=False):
        assert matcher.consume_token(token), "the tokens of our own tokenizer"
    mask = matcher.compute_bitmask()
    assert {token for token in range(known.vocabulary) if mask[token // 8] >> token % 8 & 1} == set(known.stop_ids)


PET = {"type": "object", "properties": {"kind": {"const": "pet"}, "name": {"type": "string"}}, "required": ["kind"]}
CAR = {"type": "object", "properties": {"kind": {"enum": ["car", "van"]}}, "required": ["kind"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"$ref": "#/$defs/Pet"}, {"$ref": "#/$defs/Car"}], "$defs": {"Pet": PET, "Car": CAR}},
        {"items": {"oneOf": [{"$ref": "#/definitions/Pet"}, {"type": "null"}]}, "definitions": {"Pet": PET}},
        {"oneOf": [{"type": ["string", "null"]}, {"type": "integer"}, {"const": True}]},
        {"properties": {"oneOf": {"oneOf": [{"enum": [1, 2]}, {"enum": ["1", 3.5]}]}}},
    ],
)  # fmt: skip
def test_one_of_schemas_that_exclude_each_other_is_any_of_them(schema: dict[str, Any], tokenizer: LLTokenizer) -> None:
    compiled(tokenizer, of_json_schema(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer"}, {"minimum": 3}]},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"oneOf": [{"const": 1}, {"const": 1.0}]},
        {"oneOf": [{"$ref": "#/$defs/Pet"}, {"type": "object"}], "$defs": {"Pet": PET}},
        {"oneOf": [{**PET, "required": []}, {**CAR, "required": []}]},
        {"oneOf": [POINT | {"additionalProperties": True}, {"type": "object", "properties": {"y": {}}}]},
        {
            "oneOf": [
                {"type": "object", "properties": {"x": {}}, "required": ["x"]},
                {"type": "object", "properties": {}},
            ]
        },
        {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
def test_one_of_schemas_that_both_may_fit_is_refused(schema: dict[str, Any], tokenizer: LLTokenizer) -> None:
    """A value that fits both would be no answer; without a way to say so, the request is refused."""
    with pytest.raises(GrammarError):
        compiled(tokenizer, of_json_schema(schema))


def test_values_that_look_like_schemas_stay_as_they_are() -> None:
    schema = {"const": {"oneOf": [{"type": "null"}, {"type": "string"}]}}
    assert json.loads(of_json_schema(schema).removeprefix("start: %json "))["const"] == schema["const"]


@pytest.mark.parametrize("form", ["date", "date-time"])
def test_only_leap_years_have_a_29th_of_february(form: str, tokenizer: LLTokenizer) -> None:
    grammar = of_json_schema({"properties": {"on": {"type": "string", "format": form}}, "required": ["on"]})
    clock = "" if form == "date" else "T12:00:00Z"
    for year in range(1896, 2406):
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        assert fits(tokenizer, grammar, json.dumps({"on": f"{year}-02-29{clock}"})) == leap
    for day, real in [("2023-02-28", True), ("2023-12-31", True), ("2024-02-30", False), ("2023-04-31", False)]:
        assert fits(tokenizer, grammar, json.dumps({"on": f"{day}{clock}"})) == real
