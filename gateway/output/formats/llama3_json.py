"""Reads calls in the format of Llama 3.1 to 3.3: an answer that is an object, or several with semicolons between.

    {"name": "weather", "parameters": {"place": "Oslo"}}

There may be `<|python_tag|>` in front, anywhere in the answer. Without it an answer may also be JSON that the user has
asked for, so only the names of the request's tools make calls.
"""

import json
from collections.abc import Container

from gateway.grammar.texts import literal
from gateway.output.formats.call_object import Found, call_object
from gateway.output.formats.family import Family
from gateway.output.lark import HEAD, TokenId, arguments, either, mark, up_to
from gateway.output.reader import Marks, Reader, Steps, told
from gateway.output.tools import Tool, ToolUse

TAG = "<|python_tag|>"
_TAG = Marks(TAG)
_MEMBER = literal('"parameters":')
_BEGIN = '/\\{"name": ?"/'


def read(reader: Reader, use: ToolUse, prompt: str) -> Steps[None]:
    """Yields content and calls."""
    known = {tool.name for tool in use.tools}
    yield from reader.hold_space()
    if (yield from reader.comes("{")):
        reader.attempt()
        found = yield from _calls(reader, known)
    else:
        found = yield from reader.content(_TAG)
    while found:
        reader.attempt(TAG)
        yield from reader.skip(TAG)  # once more
        yield from reader.space()
        found = yield from _calls(reader, None)


def _calls(reader: Reader, known: Container[str] | None) -> Steps[str]:
    """Reads calls, and content up to the next tag, which it returns."""
    while True:
        outcome = yield from call_object(reader, known)
        if outcome is Found.BROKEN:
            return (yield from told(reader.until(_TAG), reader.arguments))
        if outcome is Found.NOTHING:
            yield from reader.give_up()
            return (yield from reader.content(_TAG))
        yield from reader.hold_space()
        if not (yield from reader.skip(";")):
            return (yield from reader.content(_TAG))
        reader.attempt(";")
        yield from reader.space()


def grammar(use: ToolUse, token_id: TokenId) -> str:
    """Returns the grammar of an answer. One that begins as a call does is a call."""
    more = f" (/; ?/ {_BEGIN} call)*" if use.parallel else ""
    calls = f"call: {either(map(_call, use.tools))}\n"
    if use.must:
        return HEAD + f"start: SPACE? ({mark(TAG, token_id)})? {_BEGIN} call{more} SPACE?\n" + calls
    opening = f"plain[lazy]: /[ \\n]{{0,2}}/ {_BEGIN}\n" + up_to("tagged", TAG, token_id)
    return HEAD + f"start: (plain | tagged {_BEGIN}) call{more} SPACE? | TEXT\n" + opening + calls


def _call(tool: Tool) -> str:
    name = json.dumps(tool.name)[1:]  # behind its opening quotation mark
    return f"{literal(name + ',')} / ?/ {_MEMBER} / ?/ {arguments(tool)} {literal('}')}"


LLAMA3_JSON = Family(
    "llama3_json",
    markers=(TAG,),
    beside=TAG,
    words=('"parameters":', "<|start_header_id|>"),
    written=('"parameters":',),
    read=read,
    grammar=grammar,
)
