"""One form may be said by several fields, and whether its objects are closed is the client's choice."""

import json
from typing import Any

import pytest

from tests.gateway.running import Running

SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
GRAMMAR = 'root ::= "a" "b"'
CLOSED = '"additionalProperties":false'
FUNCTION: Any = {"name": "note", "parameters": SCHEMA}


def grammar_of(running: Running) -> str:
    """The last that reached a worker."""
    return running.peer("prefill").jobs[-1].sampling.grammar


@pytest.mark.parametrize(
    "asked",
    [
        {"guided_grammar": GRAMMAR, "structured_outputs": {"grammar": GRAMMAR}},
        {"guided_json": SCHEMA, "structured_outputs": {"json": json.dumps(SCHEMA)}, "response_format": FORMAT},
        {"guided_choice": ["a", "b"], "structured_outputs": {"choice": ["a", "b"]}},
        {"guided_regex": "a+", "structured_outputs": {"regex": "a+"}, "regex": "a+"},
        {"structured_outputs": {"grammar": GRAMMAR}, "grammar": GRAMMAR, "ebnf": GRAMMAR},
        {"guided_json": SCHEMA, "json_schema": json.dumps(SCHEMA)},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"json_object": True}},
    ],
)
async def test_one_form_by_several_names_is_one(asked: dict[str, Any], running: Running) -> None:
    last = [dict([field]) for field in asked.items()][-1]
    assert (await running.chat(**last, max_tokens=1)).status_code == 200
    alone = grammar_of(running)
    answer = await running.chat(**asked, max_tokens=1)
    assert answer.status_code == 200, answer.text
    assert grammar_of(running) == alone != ""


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"guided_grammar": GRAMMAR, "structured_outputs": {"grammar": GRAMMAR + '"c"'}}, "guided_grammar"),
        ({"guided_json": {"const": 1}, "structured_outputs": {"json": {"const": True}}}, "guided_json"),
        ({"guided_json": "{broken", "response_format": FORMAT}, "guided_json"),
        ({"guided_choice": ["a+"], "structured_outputs": {"regex": "a+"}}, "guided_choice"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
    ],
)
async def test_two_forms_that_differ_are_refused(asked: dict[str, Any], param: str, running: Running) -> None:
    error = (await running.chat(**asked)).json()["error"]
    assert (error["code"], error["param"]) == ("conflicting_parameters", param)


@pytest.mark.parametrize("form", [{"structured_outputs": {"json": SCHEMA}}, {"response_format": FORMAT}])
async def test_objects_are_closed_unless_the_client_opens_them(form: dict[str, Any], running: Running) -> None:
    for option in (None, True):
        own = form.get("structured_outputs", {})
        asked = form | {"structured_outputs": own | {"disable_additional_properties": option}}
        assert (await running.chat(**asked, max_tokens=1)).status_code == 200
        assert CLOSED in grammar_of(running)
    opened = form | {
        "structured_outputs": form.get("structured_outputs", {}) | {"disable_additional_properties": False}
    }
    assert (await running.chat(**opened, max_tokens=1)).status_code == 200
    assert CLOSED not in grammar_of(running) != ""


async def test_arguments_are_closed_as_forms_are(calling: Running) -> None:
    for asked in (
        {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
        {"functions": [FUNCTION], "function_call": {"name": "note"}},
    ):
        assert (await calling.chat(**asked, max_tokens=1)).status_code == 200
        assert CLOSED in grammar_of(calling)
        opened = asked | {"structured_outputs": {"disable_additional_properties": False}}
        assert (await calling.chat(**opened, max_tokens=1)).status_code == 200
        assert CLOSED not in grammar_of(calling)
