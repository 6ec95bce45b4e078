"""Writes grammars of calls as llguidance reads them: Lark rules with JSON schemas in them.

A marker may be one token of the vocabulary, or a text of several; some models have the token and spell it out all the
same. So a rule for a marker takes it either way, and free text ends where the marker appears in either: a special token
is never part of a text, and a lazy rule ends with the first place where its text does.
(Guidance's document on tool calls in Lark: https://github.com/guidance-ai/llguidance, docs/syntax.md.)
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.output.tools import Tool, ToolUse

TokenId = Callable[[str], int | None]  # the id of a token that is spelled so, or None

ARGUMENT_SPACE = "[ \\n\\r\\t]{1,32}"  # without a bound, a model could write white space for ever
HEAD = """%llguidance {}
TEXT: /(.|\\n)*/
SPACE: /[ \\n]{1,2}/
"""


def text(words: str) -> str:
    """Returns a literal."""
    return json.dumps(words)


def mark(words: str, token_id: TokenId) -> str:
    """Returns a marker, for use inside of a rule."""
    token = token_id(words)
    return text(words) if token is None else f"(<[{token}]> | {text(words)})"


def either(rules: Iterable[str]) -> str:
    """Returns the choice between several ways."""
    return " | ".join(f"({rule})" for rule in rules)


def up_to(rule: str, words: str, token_id: TokenId) -> str:
    """Returns rules by which `rule` is any text up to a marker, and the marker."""
    token = token_id(words)
    lazy = f"{rule}_text[lazy]: TEXT {text(words)}\n"
    return f"{lazy}{rule}: {rule}_text" + ("" if token is None else f" | TEXT <[{token}]>") + "\n"


def arguments(tool: Tool) -> str:
    """Returns a tool's arguments: an object by its schema, or an empty one."""
    if tool.parameters is None:
        return schema({"type": "object", "properties": {}, "additionalProperties": False}, tool.strict)
    return schema({"type": "object", **tool.parameters}, tool.strict)


def schema(given: Any, strict: bool, root: Mapping[str, Any] | None = None) -> str:
    """Returns a JSON schema as part of a rule. `root` is the schema that it is part of, whose definitions it uses."""
    shared = {key: root[key] for key in ("$defs", "definitions") if root and key in root}
    options = {"whitespace_pattern": ARGUMENT_SPACE, "lenient": not strict}
    return "%json " + json.dumps({**shared, **(given if isinstance(given, Mapping) else {}), "x-guidance": options})


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
