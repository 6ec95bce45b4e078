"""Reads and constrains calls that are JSON objects behind a marker, as most models write them.

    <tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>

Formats differ in the markers, in the members' names, and in whether several calls form an array, stand in lines, or
have a marker each.
"""

import json
from typing import NamedTuple

from gateway.grammar.texts import literal
from gateway.output.formats.call_object import CallOutcome, call_object, keyed_call_object
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.lark import LARK_HEAD, TokenId, arguments, either, mark, start
from gateway.output.reader import Markers, OutputReader, Steps, as_parts
from gateway.output.tools import Tool, ToolUse


class JsonCalls(NamedTuple):
    """The text that a format writes in and around its calls."""

    opening: str
    closing: str = ""  # "": nothing
    array: bool = False  # calls form an array
    lines: bool = False  # each call is a line; without `array` and `lines`, each call has its own markers
    alone: bool = False  # at most one call
    name: str = "name"
    arguments: str = "arguments"  # "": the only member has the tool's name as its name
    first: str = ""  # rule of members before the name
    last: str = ""  # rule of members after the arguments
    framing: tuple[str, ...] = ()  # special tokens around other text
    tokens: tuple[str, ...] | None = None  # special tokens in the markers; None: the markers themselves


def json_format(name: str, form: JsonCalls, *written: str) -> ToolFormat:
    """Returns the format. See `ToolFormat` for `written`."""
    marks = Markers(form.opening), Markers(*filter(None, (form.opening, form.closing)))

    def read(reader: OutputReader, use: ToolUse, prompt: str) -> Steps[None]:
        return _read(reader, form, *marks)

    def grammar(use: ToolUse, token_id: TokenId) -> str:
        return _grammar(form, use, token_id)

    markers = tuple(filter(None, (form.opening, form.closing))) if form.tokens is None else form.tokens
    return ToolFormat(name, markers, read, grammar, words=(form.opening,), written=written)


# reading --------------------------------------------------------------------------------------------------------------


def _read(reader: OutputReader, form: JsonCalls, opening: Markers, ends: Markers) -> Steps[None]:
    found = yield from reader.content(opening)
    while found:
        reader.attempt(found)
        yield from reader.space()
        outcome = yield from _calls(reader, form)
        if outcome is CallOutcome.BROKEN:
            end = yield from as_parts(reader.until(ends), reader.arguments)
            found = end if end == form.opening else (yield from reader.content(opening))
            continue
        if outcome is CallOutcome.NOTHING:
            yield from reader.give_up()
        found = yield from reader.content(opening)


def _calls(reader: OutputReader, form: JsonCalls) -> Steps[CallOutcome]:
    """Reads the calls after a marker, and what closes them."""
    array = form.array and (yield from reader.skip("["))
    while True:
        yield from reader.space()
        outcome = yield from (call_object(reader, name_key=form.name) if form.arguments else keyed_call_object(reader))
        if outcome is not CallOutcome.CALL:
            return outcome
        yield from reader.hold_space()
        if array and (yield from reader.skip(",")):
            reader.attempt(",")
        elif form.lines and (yield from reader.comes("{")):
            reader.attempt()
        else:
            yield from reader.end(*filter(None, ("]" if array else "", form.closing)))
            return CallOutcome.CALL


# constraining ---------------------------------------------------------------------------------------------------------


def _grammar(form: JsonCalls, use: ToolUse, token_id: TokenId) -> str:
    several = form.array or form.lines
    use = use._replace(parallel=use.parallel and not form.alone)
    comma = '"," ' if form.array else ""
    more = f" ({comma}GAP? call)*" if several and use.parallel else ""
    calls = f'"[" GAP? call{more} GAP? "]"' if form.array else f"call{more}"
    closing = f" GAP? {mark(form.closing, token_id)}" if form.closing else ""
    return (
        LARK_HEAD
        + "GAP: /[ \\n]{1,12}/\n"
        + start(use, form.opening, token_id, again=not several, framing=form.framing)
        + f"body: GAP? {calls}{closing}\n"
        + f"call: {either(_call(form, tool) for tool in use.tools)}\n"
    )


def _call(form: JsonCalls, tool: Tool) -> str:
    name = json.dumps(tool.name)
    if not form.arguments:
        return f'"{{" {literal(name + ":")} / ?/ {arguments(tool)} "}}"'
    key, members = literal(f'"{form.name}":'), literal(f'"{form.arguments}":')
    first = f"{form.first} GAP? " if form.first else ""
    last = f" {form.last}" if form.last else ""
    named = f"{key} / ?/ {literal(name + ',')} GAP? {members} GAP? {arguments(tool)}"
    return f'"{{" GAP? {first}{named}{last} GAP? "}}"'


# formats --------------------------------------------------------------------------------------------------------------

_ID_MEMBER = '(/, ?"id": ?"[a-zA-Z0-9_-]{1,40}"/)?'
_COHERE_FRAMING = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")

JSON_FORMATS = (
    # <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>
    json_format("hermes", JsonCalls("<tool_call>", "</tool_call>")),
    # <|tool_call|>[{"name": "f", "arguments": {"a": 1}}]
    json_format("granite", JsonCalls("<|tool_call|>", array=True)),
    # <TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>
    json_format("nemotron", JsonCalls("<TOOLCALL>", "</TOOLCALL>", array=True)),
    # <tool_calls>[{"name": "f", "arguments": {"a": 1}, "id": "c"}]</tool_calls>
    json_format("apriel", JsonCalls("<tool_calls>", "</tool_calls>", array=True, last=_ID_MEMBER), "<tool_calls>["),
    # <tool_calls>{"name": "f", "arguments": {"a": 1}}</tool_calls>, a call in each line
    json_format("minimax", JsonCalls("<tool_calls>", "</tool_calls>", lines=True)),
    # <|tools_prefix|>[{"f": {"a": 1}}]<|tools_suffix|>
    json_format("apertus", JsonCalls("<|tools_prefix|>", "<|tools_suffix|>", array=True, arguments="")),
    # <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>
    json_format(
        "command_r7b",
        JsonCalls(
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            array=True,
            name="tool_name",
            arguments="parameters",
            first='/"tool_call_id": ?"[0-9]{1,4}",/',
            framing=_COHERE_FRAMING,
        ),
    ),
    # Action: ```json [{"tool_name": "f", "parameters": {"a": 1}}]```
    json_format(
        "command_r",
        JsonCalls("Action:\n```json", "```", array=True, name="tool_name", arguments="parameters", tokens=()),
    ),
    # function call<|role_sep|>{"name": "f", "arguments": {"a": 1}}
    json_format(
        "gigachat3",
        JsonCalls("function call<|role_sep|>\n", alone=True, framing=("<|message_sep|>",), tokens=("<|role_sep|>",)),
    ),
    # <|function_call|>{"name": "f", "arguments": {"a": 1}}
    json_format("gigachat31", JsonCalls("<|function_call|>", alone=True)),
)
