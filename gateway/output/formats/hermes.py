"""Reads calls in the format of Hermes and Qwen: JSON between `<tool_call>` and `</tool_call>`.

<tool_call>
{"name": "weather", "arguments": {"place": "Oslo"}}
</tool_call>
"""

import json

from gateway.grammar.texts import literal
from gateway.output.formats.call_object import Found, call_object
from gateway.output.formats.family import Family
from gateway.output.lark import HEAD, TokenId, arguments, either, mark, start
from gateway.output.reader import Marks, Reader, Steps, told
from gateway.output.tools import Tool, ToolUse

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_OPEN, _ENDS = Marks(OPEN), Marks(OPEN, CLOSE)


def read(reader: Reader, use: ToolUse, prompt: str) -> Steps[None]:
    """Yields content and calls."""
    found = yield from reader.content(_OPEN)
    while found:
        reader.attempt(OPEN)
        yield from reader.space()
        outcome = yield from call_object(reader)
        if outcome is Found.BROKEN:
            mark = yield from told(reader.until(_ENDS), reader.arguments)
            found = mark if mark == OPEN else (yield from reader.content(_OPEN))
            continue
        if outcome is Found.NOTHING:
            yield from reader.give_up()
        else:
            yield from reader.end(CLOSE)
        found = yield from reader.content(_OPEN)


def grammar(use: ToolUse, token_id: TokenId) -> str:
    """Returns the grammar of an answer."""
    body = f"body: SPACE? ({either(map(_call, use.tools))}) SPACE? {mark(CLOSE, token_id)}\n"
    return HEAD + start(use, OPEN, token_id) + body


def _call(tool: Tool) -> str:
    name, members = literal('{"name":'), literal('"arguments":')
    return f"{name} / ?/ {literal(json.dumps(tool.name) + ',')} / ?/ {members} / ?/ {arguments(tool)} {literal('}')}"


HERMES = Family(
    "hermes",
    markers=(OPEN, CLOSE),
    recognises=lambda template: OPEN in template,
    read=read,
    grammar=grammar,
)
