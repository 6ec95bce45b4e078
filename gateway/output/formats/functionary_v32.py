"""Reads and constrains answers in the format of Functionary v3.2, in which every message names its recipient.

    >>>weather
    {"place": "Oslo"}

The prompt ends with the first `>>>`. Content is addressed to `all`.
"""

from gateway.grammar.texts import literal
from gateway.output.formats.call_object import CallOutcome, arguments_value
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.lark import LARK_HEAD, TokenId, arguments, either, up_to
from gateway.output.reader import Markers, OutputReader, Steps, as_parts, into_list
from gateway.output.tools import Tool, ToolUse

TO, ALL = ">>>", "all"
_TO, _NAME_ENDS = Markers(TO), Markers("\n", TO)


def _read(reader: OutputReader, use: ToolUse, prompt: str) -> Steps[None]:
    begun = prompt.rstrip().endswith(TO)
    found = TO if begun else (yield from reader.content(_TO))
    reader.attempt("" if begun else found)
    while found:
        outcome = yield from _addressed(reader)
        if outcome is CallOutcome.BROKEN:
            found = yield from as_parts(reader.until(_TO), reader.arguments)
        else:
            if outcome is CallOutcome.NOTHING:
                yield from reader.give_up()
            found = yield from reader.content(_TO)
        reader.attempt(found)


def _addressed(reader: OutputReader) -> Steps[CallOutcome]:
    """Reads a recipient, and the arguments if it is a tool. Content for `all` is left unread."""
    words: list[str] = []
    if (yield from into_list(reader.until(_NAME_ENDS), words)) == TO:
        reader.unread(TO)
        return CallOutcome.NOTHING
    name = "".join(words).strip()
    if name == ALL:
        reader.accept()
        return CallOutcome.CALL
    yield from reader.space()
    return (yield from arguments_value(reader, name)) if name else CallOutcome.NOTHING


def _grammar(use: ToolUse, token_id: TokenId) -> str:
    """Returns the grammar of an answer. The prompt may have the first recipient's marker."""
    to = literal(TO)
    more = f" ({to} call)*" if use.parallel else ""
    calls = f"call: {either(_call(tool) for tool in use.tools)}\n"
    if use.must:
        return LARK_HEAD + f"start: ({to})? call{more}\n" + calls
    said = literal(f"{ALL}\n")
    return (
        LARK_HEAD + f"start: ({to})? ({said} said)* (call{more} | {said} TEXT)\n" + calls + up_to("said", TO, token_id)
    )


def _call(tool: Tool) -> str:
    named = literal(f"{tool.name}\n")
    return f"{named} {arguments(tool)} SPACE?"


FUNCTIONARY_V32 = ToolFormat("functionary_v32", (), _read, _grammar, words=(f"{TO}${{recipient}}",))
