"""Reads calls in the format of Hermes and Qwen: JSON between `<tool_call>` and `</tool_call>`.

<tool_call>
{"name": "weather", "arguments": {"place": "Oslo"}}
</tool_call>
"""

import json

from gateway.output.call_object import Found, call_object
from gateway.output.family import Family
from gateway.output.lark import HEAD, TokenId, arguments, mark, start, text
from gateway.output.reader import Marks, Reader, Steps, told
from gateway.output.tools import Tool, ToolUse

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_OPEN, _CLOSE = Marks(OPEN), Marks(CLOSE)


def read(reader: Reader, use: ToolUse) -> Steps[None]:
    """Yields content and calls."""
    while (yield from reader.content(_OPEN)):
        reader.attempt(OPEN)
        yield from reader.space()
        match (yield from call_object(reader)):
            case Found.NOTHING:
                yield from reader.give_up()
            case Found.CALL:
                yield from reader.space()
                yield from reader.skip(CLOSE)
            case Found.BROKEN:
                yield from told(reader.until(_CLOSE), reader.arguments)


def grammar(use: ToolUse, token_id: TokenId) -> str:
    """Returns the grammar of an answer."""
    calls = " | ".join(f"({_call(tool)})" for tool in use.tools)
    body = f"body: SPACE? ({calls}) SPACE? {mark(CLOSE, token_id)}\n"
    return HEAD + start(use, OPEN, token_id) + body


def _call(tool: Tool) -> str:
    name, members = text('{"name":'), text('"arguments":')
    return f"{name} / ?/ {text(json.dumps(tool.name) + ',')} / ?/ {members} / ?/ {arguments(tool)} {text('}')}"


HERMES = Family(
    "hermes",
    markers=(OPEN, CLOSE),
    recognises=lambda template: OPEN in template,
    read=read,
    grammar=grammar,
)
