"""Reads calls in Mistral's formats, which begin with `[TOOL_CALLS]`: an array of objects, or names and arguments.

    [TOOL_CALLS][{"name": "weather", "arguments": {"place": "Oslo"}}]
    [TOOL_CALLS]weather[ARGS]{"place": "Oslo"}[TOOL_CALLS]now[ARGS]{}

Both are read, whichever of them the model's template has; the template says which one answers are held to.
"""

import json

from gateway.grammar.texts import literal
from gateway.output.formats.call_object import CallOutcome, arguments_value, call_object
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.lark import LARK_HEAD, TokenId, arguments, either, mark, start
from gateway.output.reader import Markers, OutputReader, Steps, as_parts, into_list
from gateway.output.tools import Tool, ToolUse

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_ID_RULE = 'ID: /, ?"id": ?"[a-zA-Z0-9]{9}"/\n'
_CALLS, _ARGS, _NAME_END = Markers(CALLS), Markers(ARGS, CALLS), Markers(ARGS, CALL_ID, CALLS, "{")


def read(reader: OutputReader, use: ToolUse, prompt: str) -> Steps[None]:
    found = yield from reader.content(_CALLS)
    while found:
        reader.attempt(CALLS)
        yield from reader.space()
        if (yield from reader.skip("[")):
            outcome = yield from _array(reader)
        elif (yield from reader.comes("{")):
            outcome = yield from call_object(reader)
        else:
            outcome = yield from _named(reader)
        if outcome is CallOutcome.BROKEN:
            found = yield from as_parts(reader.until(_CALLS), reader.arguments)
            continue
        if outcome is CallOutcome.NOTHING:
            yield from reader.give_up()
        found = yield from reader.content(_CALLS)


def _array(reader: OutputReader) -> Steps[CallOutcome]:
    """Reads calls from behind the array's opening bracket on."""
    while True:
        yield from reader.space()
        outcome = yield from call_object(reader)
        if outcome is not CallOutcome.CALL:
            return outcome
        yield from reader.hold_space()
        if not (yield from reader.skip(",")):
            yield from reader.end("]")
            return CallOutcome.CALL
        reader.attempt(",")


def _named(reader: OutputReader) -> Steps[CallOutcome]:
    words: list[str] = []
    mark = yield from into_list(reader.until(_NAME_END), words)
    name = "".join(words).strip()
    if mark == CALL_ID:
        mark = yield from into_list(reader.until(_ARGS), [])
    if mark == "{":
        reader.unread(mark)
    if mark not in (ARGS, "{") or not name or len(name.split()) > 1:
        if mark == CALLS:
            reader.unread(mark)
        return CallOutcome.NOTHING
    yield from reader.space()
    return (yield from arguments_value(reader, name))


def array_grammar(use: ToolUse, token_id: TokenId) -> str:
    more = " (/, ?/ call)*" if use.parallel else ""
    body = f'body: " "? "[" call{more} "]"\ncall: {either(map(_object, use.tools))}\n{_ID_RULE}'
    return LARK_HEAD + start(use, CALLS, token_id, again=False) + body


def _object(tool: Tool) -> str:
    name, members = literal('{"name":'), literal('"arguments":')
    return (
        f"{name} / ?/ {literal(json.dumps(tool.name) + ',')} / ?/ {members} / ?/ {arguments(tool)} ID? {literal('}')}"
    )


def named_grammar(use: ToolUse, token_id: TokenId) -> str:
    args = mark(ARGS, token_id)
    calls = either(f"{literal(tool.name)} {args} {arguments(tool)}" for tool in use.tools)
    return LARK_HEAD + start(use, CALLS, token_id) + f"body: {calls}\n"


MISTRAL_MARKERS = (CALLS, ARGS, CALL_ID)
MISTRAL_ARRAY = ToolFormat("mistral", MISTRAL_MARKERS, read, array_grammar, words=(CALLS,))
MISTRAL_NAMED = ToolFormat("mistral_named", MISTRAL_MARKERS, read, named_grammar, words=(CALLS, ARGS), written=(ARGS,))
