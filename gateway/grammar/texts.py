"""Writes grammars of answers as Lark texts, which workers compile.

Each function returns a whole grammar with a rule `start`. `nested` makes a whole grammar a part of another, with its
own namespace of rules, so that grammars of different origin never collide:

    of_json_schema(schema) → 'start: %json {…}'
    f'start: "<tool_call>" {nested(of_json_schema(schema))} "</tool_call>"'

Nothing is compiled here: `gateway/grammar/checks.py` does that in separate processes.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from checkpoints.grammars import GrammarError
from gateway.grammar.closing import with_closed_objects
from gateway.grammar.counting import with_counts
from gateway.grammar.one_of import with_any_of
from gateway.grammar.parts import with_each_part

JSON_WHITESPACE_REGEX = r"[ \t]{1,2}|\r?\n[ \t]{0,40}"
"""White space between the tokens of JSON, as people and models indent it; bounded, so that no answer gets lost in it.
"""

JSONSchema = dict[str, Any] | bool  # a parsed JSON schema


def of_json_schema(schema: JSONSchema, closes: bool = True) -> str:
    """Returns the grammar of JSON by a schema, all of whose keywords are enforced. `closes` closes its objects.

    Raises `GrammarError` for a schema that is too large or too deep to be closed.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    options, told = {"whitespace_pattern": JSON_WHITESPACE_REGEX}, schema.get("x-guidance")
    try:
        found = with_any_of(schema)
        found = with_each_part(with_closed_objects(found) if closes else found, with_counts)
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None
    written = {**found, "x-guidance": options | (told if isinstance(told, dict) else {})}
    return f"start: %json {msgspec.json.encode(written).decode()}"


def of_json_object() -> str:
    return of_json_schema({"type": "object"})


def of_regex(pattern: str) -> str:
    return f"start: /{_escaped(pattern)}/"


def of_choices(choices: Sequence[str]) -> str:
    return "start: " + " | ".join(literal(choice) for choice in choices)


def literal(text: str) -> str:
    """Returns a text as a literal of a rule. It must not be empty."""
    return msgspec.json.encode(text).decode()


def nested(grammar: str) -> str:
    return f"%lark {{\n{grammar}\n}}"


_LARK_ESCAPES = {"\\d": "[0-9]", "/": "\\/", "\n": "\\n", "\\\n": "\\n"}


def _escaped(pattern: str) -> str:
    """Returns a regex as it stands between slashes. Digits are ASCII digits, as readers of numbers expect."""
    return re.sub(r"\\.|/|\n", lambda found: _LARK_ESCAPES.get(found[0], found[0]), pattern, flags=re.DOTALL)
