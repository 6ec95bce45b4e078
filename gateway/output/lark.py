"""Writes grammars of calls as llguidance reads them: Lark rules with JSON schemas in them.

A marker may be one token of the vocabulary, or a text of several; some models have the token and spell it out all the
same. So a rule for a marker takes it either way, and free text ends where the marker appears in either: a special token
is never part of a text, and a lazy rule ends with the first place where its text does.
(Guidance's document on tool calls in Lark: https://github.com/guidance-ai/llguidance, docs/syntax.md.)
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.grammar.texts import literal, of_json_schema
from gateway.output.tools import Tool, ToolUse

TokenId = Callable[[str], int | None]  # the id of a token that is spelled so, or None

HEAD = """%llguidance {}
TEXT: /(.|\\n)*/
SPACE: /[ \\n]{1,2}/
"""
NOTHING: Mapping[str, Any] = {"properties": {}, "additionalProperties": False}
_SAID = frozenset({"$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


def mark(words: str, token_id: TokenId) -> str:
    """Returns a marker, for use inside of a rule."""
    token = token_id(words)
    return literal(words) if token is None else f"(<[{token}]> | {literal(words)})"


def either(rules: Iterable[str]) -> str:
    """Returns the choice between several ways."""
    return " | ".join(f"({rule})" for rule in rules)


def up_to(rule: str, words: str, token_id: TokenId) -> str:
    """Returns rules by which `rule` is any text up to a marker, and the marker."""
    token = token_id(words)
    lazy = f"{rule}_text[lazy]: TEXT {literal(words)}\n"
    return f"{lazy}{rule}: {rule}_text" + ("" if token is None else f" | TEXT <[{token}]>") + "\n"


def arguments(tool: Tool) -> str:
    """Returns a tool's arguments: an object by its schema, or an empty one."""
    return schema({"type": "object", **(NOTHING if tool.parameters is None else tool.parameters)}, tool)


def schema(given: Any, tool: Tool, root: Mapping[str, Any] | None = None) -> str:
    """Returns a JSON schema of a tool as part of a rule. `root` is what it is part of, whose definitions it uses."""
    shared = {key: root[key] for key in ("$defs", "definitions") if root and key in root}
    whole = {**shared, **(given if isinstance(given, Mapping) else {})}
    written = of_json_schema(bare(whole) | {"x-guidance": {"lenient": not tool.strict}}, tool.closes)
    return written.removeprefix("start: ")


def bare(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema without what it only says to readers."""
    return {key: _bare(value, key) for key, value in schema.items() if key not in _SAID}


def _bare(value: Any, key: str) -> Any:
    if key in ("enum", "const", "required", "dependentRequired", "type"):
        return value
    if isinstance(value, list):
        return [bare(part) if isinstance(part, Mapping) else part for part in value]
    if not isinstance(value, Mapping):
        return value
    if key in _NAMED:
        return {name: bare(part) if isinstance(part, Mapping) else part for name, part in value.items()}
    return bare(value)


class Shared:
    """Collects the rules of expressions that come often, each once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def rule(self, expression: str) -> str:
        """Returns the name of the rule that is this expression."""
        return self._names.setdefault(expression, f"shared_{len(self._names)}")

    def written(self) -> str:
        """Returns the rules."""
        return "".join(f"{name}: {expression}\n" for expression, name in self._names.items())


def start(use: ToolUse, marker: str, token_id: TokenId, again: bool = True) -> str:
    """Returns the rules from `start` on, in which `body` is what follows the marker. With `again`, it may come again.

    Where a call has to come, it comes at once; else text is free until the marker appears. Behind a call that may have
    no other beside it, the answer ends.
    """
    opened, again = mark(marker, token_id), again and use.parallel
    if use.must:
        more = f" (SPACE? {opened} body)*" if again else ""
        return f"start: SPACE? {opened} body{more} SPACE?\n"
    whole = "(opening body)* TEXT" if again else "opening body SPACE? | TEXT"
    return f"start: {whole}\n" + up_to("opening", marker, token_id)
