"""Writes grammars of calls for llguidance: Lark rules that contain JSON schemas.

A marker may be one token of the vocabulary, or a text of several tokens, and some models with the token spell it out
all the same. So a marker's rule takes both, and free text ends where the marker appears in either form: a special token
is never part of a text, and a lazy rule ends with the first occurrence of its text. A few markers have a token inside
other text. (Guidance's document on tool calls in Lark: https://github.com/guidance-ai/llguidance, docs/syntax.md.)
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from gateway.grammar.texts import literal, of_json_schema
from gateway.output.tools import Tool, ToolUse

TokenId = Callable[[str], int | None]  # the id of the token with this text, or None

LARK_HEAD = """%llguidance {}
TEXT: /(.|\\n)*/
SPACE: /[ \\n]{1,2}/
"""
NO_ARGUMENTS_SCHEMA: Mapping[str, Any] = {"properties": {}, "additionalProperties": False}
_DESCRIPTION_KEYS = frozenset(
    {"$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
_NAMED_SUBSCHEMA_KEYS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


_TOKEN_REGEX = re.compile(r"(<\|[^<>|]+\|>|｜[^<>｜]+｜)")  # tokens inside the text of a marker look like this


def mark(words: str, token_id: TokenId) -> str:
    """Returns the rule of a marker."""
    head, token, tail = _parted(words, token_id)
    if token is None:
        return literal(words)
    if not head and not tail:
        return f"(<[{token}]> | {literal(words)})"
    # The spelled-out form is no alternative here: after `head` a matcher would force the bytes of the spelling.
    return " ".join([*([literal(head)] if head else ()), f"<[{token}]>", *([mark(tail, token_id)] if tail else ())])


def _parted(words: str, token_id: TokenId) -> tuple[str, int | None, str]:
    """Returns the text before the first token in a marker, the token's id or None, and the text after it."""
    if (token := token_id(words)) is not None:
        return "", token, ""
    for found in _TOKEN_REGEX.finditer(words):
        if (token := token_id(found[0])) is not None:
            return words[: found.start()], token, words[found.end() :]
    return words, None, ""


def either(rules: Iterable[str]) -> str:
    return " | ".join(f"({rule})" for rule in rules)


def up_to(rule: str, words: str, token_id: TokenId) -> str:
    """Returns rules by which `rule` is any text up to and including a marker."""
    head, token, tail = _parted(words, token_id)
    lazy = f"{rule}_text[lazy]: TEXT {literal(words)}\n"
    if token is None:
        return f"{lazy}{rule}: {rule}_text\n"
    rest = f" {mark(tail, token_id)}" if tail else ""
    before = f"{rule}_head: /(.|\\n)*{re.escape(head).replace('/', chr(92) + '/')}/\n" if head else ""
    return f"{lazy}{before}{rule}: {rule}_text | {f'{rule}_head' if head else 'TEXT'} <[{token}]>{rest}\n"


def arguments(tool: Tool) -> str:
    """Returns the rule of a tool's arguments: an object that fits its schema, or an empty object."""
    return schema({"type": "object", **(NO_ARGUMENTS_SCHEMA if tool.parameters is None else tool.parameters)}, tool)


def schema(given: Any, tool: Tool, root: Mapping[str, Any] | None = None) -> str:
    """Returns the rule of a schema in a tool's parameters. `root` is the schema whose definitions it refers to."""
    shared = {key: root[key] for key in ("$defs", "definitions") if root and key in root}
    whole = {**shared, **(given if isinstance(given, Mapping) else {})}
    written = of_json_schema(bare(whole) | {"x-guidance": {"lenient": not tool.strict}}, tool.closes)
    return written.removeprefix("start: ")


def bare(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _bare(value, key) for key, value in schema.items() if key not in _DESCRIPTION_KEYS}


def _bare(value: Any, key: str) -> Any:
    if key in ("enum", "const", "required", "dependentRequired", "type"):
        return value
    if isinstance(value, list):
        return [bare(part) if isinstance(part, Mapping) else part for part in value]
    if not isinstance(value, Mapping):
        return value
    if key in _NAMED_SUBSCHEMA_KEYS:
        return {name: bare(part) if isinstance(part, Mapping) else part for name, part in value.items()}
    return bare(value)


def required_names(schema: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names of an object's required properties."""
    required = schema.get("required")
    return frozenset(name for name in required if isinstance(name, str)) if isinstance(required, list) else frozenset()


def listed_values(schema: Mapping[str, Any]) -> list[Any]:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) else []


def member_rules(
    rule: str, values: Mapping[str, str], required: Collection[str], sign: str, comma: str, end: str
) -> str:
    """Returns rules by which `rule` is an object's members in this order, and `end`.

    Only `required` members must appear. `values` maps names to the rules of their values; `sign` follows a name.
    """
    rules = f"{rule}: {rule}_first_0\n"
    for number, (name, value) in enumerate(values.items()):
        rules += f"{rule}_{number}: {literal(name + sign)} {value}\n"
        for place, before in (("first", ""), ("next", f"{literal(comma)} ")):
            skipped = "" if name in required else f" | {rule}_{place}_{number + 1}"
            rules += f"{rule}_{place}_{number}: {before}{rule}_{number} {rule}_next_{number + 1}{skipped}\n"
    places = ("first", "next") if values else ("first",)
    return rules + "".join(f"{rule}_{place}_{len(values)}: {literal(end)}\n" for place in places)


class SharedRules:
    """Collects frequent expressions as rules, each once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def rule(self, expression: str) -> str:
        return self._names.setdefault(expression, f"shared_{len(self._names)}")

    def written(self) -> str:
        return "".join(f"{name}: {expression}\n" for expression, name in self._names.items())


def start(use: ToolUse, marker: str, token_id: TokenId, again: bool = True, framing: Sequence[str] = ()) -> str:
    """Returns the rules from `start` on, in which the caller's rule `body` follows the marker.

    With `again`, calls may repeat. If a call is required, it comes at once; otherwise text is free until the marker
    appears. If only one call is allowed, the answer ends after it. `framing` are special tokens that may stand anywhere
    outside calls.
    """
    opened, again = mark(marker, token_id), again and use.parallel
    tokens = [f"<[{token}]>" for token in map(token_id, framing) if token is not None]
    free = "TEXT" if not tokens else "framed* TEXT"
    rules = f"framed: TEXT ({' | '.join(tokens)})\n" if tokens else ""
    if use.must:
        before = f"{'(SPACE? frame)* ' if tokens else ''}SPACE?"
        more = f" ({before} {opened} body)*" if again else ""
        frame = f"frame: {' | '.join(tokens)}\n" if tokens else ""
        return f"start: {before} {opened} body{more} SPACE?\n{frame}"
    opening = "opening body" if not tokens else "framed* opening body"
    whole = f"({opening})* {free}" if again else f"{opening} SPACE? | {free}"
    return f"start: {whole}\n{rules}" + up_to("opening", marker, token_id)
