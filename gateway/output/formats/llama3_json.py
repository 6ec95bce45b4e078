"""Reads calls in the format of Llama 3.1 to 3.3: the answer is an object, or several separated by semicolons.

    {"name": "weather", "parameters": {"place": "Oslo"}}

`<|python_tag|>` may precede them, anywhere in the answer. Without it, the answer may also be JSON that the user has
asked for, so only the names of the request's tools make calls.
"""

import json
from collections.abc import Container

from gateway.grammar.texts import literal
from gateway.output.formats.call_object import CallOutcome, call_object
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.lark import LARK_HEAD, TokenId, arguments, either, mark, up_to
from gateway.output.reader import Markers, OutputReader, Steps, as_parts
from gateway.output.tools import Tool, ToolUse

PYTHON_TAG = "<|python_tag|>"
_PYTHON_TAG_MARKER = Markers(PYTHON_TAG)
_PARAMETERS_KEY = literal('"parameters":')
_CALL_BEGIN = '/\\{"name": ?"/'


def read(reader: OutputReader, use: ToolUse, prompt: str) -> Steps[None]:
    known = {tool.name for tool in use.tools}
    yield from reader.hold_space()
    if (yield from reader.comes("{")):
        reader.attempt()
        found = yield from _calls(reader, known)
    else:
        found = yield from reader.content(_PYTHON_TAG_MARKER)
    while found:
        reader.attempt(PYTHON_TAG)
        yield from reader.skip(PYTHON_TAG)  # a repeated tag
        yield from reader.space()
        found = yield from _calls(reader, None)


def _calls(reader: OutputReader, known: Container[str] | None) -> Steps[str]:
    while True:
        outcome = yield from call_object(reader, known)
        if outcome is CallOutcome.BROKEN:
            return (yield from as_parts(reader.until(_PYTHON_TAG_MARKER), reader.arguments))
        if outcome is CallOutcome.NOTHING:
            yield from reader.give_up()
            return (yield from reader.content(_PYTHON_TAG_MARKER))
        yield from reader.hold_space()
        if not (yield from reader.skip(";")):
            return (yield from reader.content(_PYTHON_TAG_MARKER))
        reader.attempt(";")
        yield from reader.space()


def grammar(use: ToolUse, token_id: TokenId) -> str:
    """Returns the grammar of an answer. An answer that begins like a call must be a call."""
    more = f" (/; ?/ {_CALL_BEGIN} call)*" if use.parallel else ""
    calls = f"call: {either(map(_call, use.tools))}\n"
    if use.must:
        return LARK_HEAD + f"start: SPACE? ({mark(PYTHON_TAG, token_id)})? {_CALL_BEGIN} call{more} SPACE?\n" + calls
    opening = f"plain[lazy]: /[ \\n]{{0,2}}/ {_CALL_BEGIN}\n" + up_to("tagged", PYTHON_TAG, token_id)
    return LARK_HEAD + f"start: (plain | tagged {_CALL_BEGIN}) call{more} SPACE? | TEXT\n" + opening + calls


def _call(tool: Tool) -> str:
    name = json.dumps(tool.name)[1:]  # without the opening quotation mark
    return f"{literal(name + ',')} / ?/ {_PARAMETERS_KEY} / ?/ {arguments(tool)} {literal('}')}"


LLAMA3_JSON = ToolFormat(
    "llama3_json",
    markers=(PYTHON_TAG,),
    beside=PYTHON_TAG,
    words=('"parameters":', "<|start_header_id|>"),
    written=('"parameters":',),
    read=read,
    grammar=grammar,
)
