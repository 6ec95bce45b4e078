"""Writes grammars of calls as llguidance reads them: Lark rules with JSON schemas in them.

A marker may be one token of the vocabulary, or a text of several; some models have the token and spell it out all the
same. So a rule for a marker takes it either way, and free text ends where the marker appears in either: a special token
is never part of a text, and a lazy rule ends with the first place where its text does. A few markers have a token among
other text.
(Guidance's document on tool calls in Lark: https://github.com/guidance-ai/llguidance, docs/syntax.md.)
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from gateway.grammar.texts import literal, of_json_schema
from gateway.output.tools import Tool, ToolUse

TokenId = Callable[[str], int | None]  # the id of a token that is spelled so, or None

LARK_HEAD = """%llguidance {}
TEXT: /(.|\\n)*/
SPACE: /[ \\n]{1,2}/
"""
NO_ARGUMENTS_SCHEMA: Mapping[str, Any] = {"properties": {}, "additionalProperties": False}
_DESCRIPTION_KEYS = frozenset(
    {"$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
_NAMED_SUBSCHEMA_KEYS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


_TOKEN_REGEX = re.compile(r"(<\|[^<>|]+\|>|｜[^<>｜]+｜)")
"""What tokens look like that markers have among other text."""


def mark(words: str, token_id: TokenId) -> str:
    """Returns a marker, for use inside of a rule."""
    head, token, tail = _parted(words, token_id)
    if token is None:
        return literal(words)
    if not head and not tail:
        return f"(<[{token}]> | {literal(words)})"
    # Not spelled out as well: behind `head` a matcher would take the spelling's bytes for the only way on.
    return " ".join([*([literal(head)] if head else ()), f"<[{token}]>", *([mark(tail, token_id)] if tail else ())])


def _parted(words: str, token_id: TokenId) -> tuple[str, int | None, str]:
    """Returns the text before the first token in a marker, the token's id or None, and the text behind it."""
    if (token := token_id(words)) is not None:
        return "", token, ""
    for found in _TOKEN_REGEX.finditer(words):
        if (token := token_id(found[0])) is not None:
            return words[: found.start()], token, words[found.end() :]
    return words, None, ""


def either(rules: Iterable[str]) -> str:
    """Returns the choice between several ways."""
    return " | ".join(f"({rule})" for rule in rules)


def up_to(rule: str, words: str, token_id: TokenId) -> str:
    """Returns rules by which `rule` is any text up to a marker, and the marker."""
    head, token, tail = _parted(words, token_id)
    lazy = f"{rule}_text[lazy]: TEXT {literal(words)}\n"
    if token is None:
        return f"{lazy}{rule}: {rule}_text\n"
    rest = f" {mark(tail, token_id)}" if tail else ""
    before = f"{rule}_head: /(.|\\n)*{re.escape(head).replace('/', chr(92) + '/')}/\n" if head else ""
    return f"{lazy}{before}{rule}: {rule}_text | {f'{rule}_head' if head else 'TEXT'} <[{token}]>{rest}\n"


def arguments(tool: Tool) -> str:
    """Returns a tool's arguments: an object by its schema, or an empty one."""
    return schema({"type": "object", **(NO_ARGUMENTS_SCHEMA if tool.parameters is None else tool.parameters)}, tool)


def schema(given: Any, tool: Tool, root: Mapping[str, Any] | None = None) -> str:
    """Returns a JSON schema of a tool as part of a rule. `root` is what it is part of, whose definitions it uses."""
    shared = {key: root[key] for key in ("$defs", "definitions") if root and key in root}
    whole = {**shared, **(given if isinstance(given, Mapping) else {})}
    written = of_json_schema(bare(whole) | {"x-guidance": {"lenient": not tool.strict}}, tool.closes)
    return written.removeprefix("start: ")


def bare(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema without what it only says to readers."""
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
    """Returns the names of the properties that an object of a schema always has."""
    required = schema.get("required")
    return frozenset(name for name in required if isinstance(name, str)) if isinstance(required, list) else frozenset()


def listed_values(schema: Mapping[str, Any]) -> list[Any]:
    """Returns the values that a schema lists, empty where it lists none."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) else []


def member_rules(
    rule: str, values: Mapping[str, str], required: Collection[str], sign: str, comma: str, end: str
) -> str:
    """Returns rules by which `rule` is members in this order, of which those required are all there, and the end.

    `values` are the rules of the members' values by name, `sign` stands behind a name.
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
    """Collects the rules of expressions that come often, each once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def rule(self, expression: str) -> str:
        """Returns the name of the rule that is this expression."""
        return self._names.setdefault(expression, f"shared_{len(self._names)}")

    def written(self) -> str:
        """Returns the rules."""
        return "".join(f"{name}: {expression}\n" for expression, name in self._names.items())


def start(use: ToolUse, marker: str, token_id: TokenId, again: bool = True, framing: Sequence[str] = ()) -> str:
    """Returns the rules from `start` on, in which `body` is what follows the marker. With `again`, it may come again.

    Where a call has to come, it comes at once; else text is free until the marker appears. Behind a call that may have
    no other beside it, the answer ends. `framing` are special tokens that may stand anywhere outside of calls.
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
