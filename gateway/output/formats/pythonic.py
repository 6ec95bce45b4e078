"""Reads calls in a Python list, the format of LFM2, and of Llama 3.2 and 4 if they are told to use it.

    [weather(place="Oslo", days=3), now()]

Markers surround the list, which Llama omits. Then an answer may also be a list that the user has asked for, so only the
names of the request's tools make calls. A call begins with its first complete argument, or its end. Arguments are sent
when they are complete, together as one JSON object, which is closed only if the call is.
"""

import json
import re
from collections.abc import Container, Generator, Mapping
from typing import NamedTuple

from gateway.grammar.texts import literal
from gateway.output.formats.argument_types import types_of
from gateway.output.formats.python_values import as_json
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.lark import (
    LARK_HEAD,
    SharedRules,
    TokenId,
    either,
    mark,
    member_rules,
    required_names,
    schema,
    up_to,
)
from gateway.output.reader import Markers, OutputReader, Steps
from gateway.output.tools import Tool, ToolUse

_NAME_ENDS = re.compile(r"[^\w.-]")
_SIGN_REGEX = re.compile(r"""["'\[\]{}(),]""")
_QUOTED_REGEXES = {sign: re.compile(rf"[{sign}\\]") for sign in "\"'"}
_CLOSING_BRACKETS = {"{": "}", "[": "]", "(": ")"}


class ListMarkers(NamedTuple):
    """The text that a format writes around a list of calls."""

    start: str
    end: str
    bare: bool  # whether the markers may be missing


def pythonic_format(name: str, form: ListMarkers, *words: str) -> ToolFormat:
    """Returns the format. See `ToolFormat` for `words`."""
    starts = Markers(form.start)

    def read(reader: OutputReader, use: ToolUse, prompt: str) -> Steps[None]:
        return _read(reader, use, form, starts)

    def grammar(use: ToolUse, token_id: TokenId) -> str:
        return _grammar(form, use, token_id)

    beside = form.start if form.bare else ""
    return ToolFormat(name, (form.start, form.end), read, grammar, words=words, beside=beside)


# reading --------------------------------------------------------------------------------------------------------------


def _read(reader: OutputReader, use: ToolUse, form: ListMarkers, starts: Markers) -> Steps[None]:
    known = {tool.name for tool in use.tools}
    yield from reader.hold_space()
    found = yield from reader.skip(form.start)
    if found or (form.bare and (yield from reader.comes("["))):
        reader.attempt(found)
        yield from _list(reader, known, form)
    while found := (yield from reader.content(starts)):
        reader.attempt(found)
        yield from _list(reader, known, form)


def _list(reader: OutputReader, known: Container[str], form: ListMarkers) -> Steps[None]:
    yield from reader.skip(form.start)  # a repeated marker
    yield from reader.space()
    if not (yield from reader.skip("[")):
        return (yield from reader.give_up())
    while True:
        yield from reader.space()
        name = yield from reader.word(_NAME_ENDS)
        if name not in known or not (yield from reader.skip("(")) or not (yield from _arguments(reader, name)):
            return (yield from reader.give_up())
        yield from reader.hold_space()
        if not (yield from reader.skip(",")):
            return (yield from reader.end("]", form.end))
        reader.attempt(",")


def _arguments(reader: OutputReader, name: str) -> Steps[bool]:
    """Reads arguments up to the closing bracket. Returns False if they are broken: `give_up` has the unsent rest."""
    begun = False
    while True:
        yield from reader.space()
        if (yield from reader.skip(")")):
            if not begun:
                yield reader.begin(name)
            yield reader.arguments("}" if begun else "{}")
            return True
        key = yield from reader.word(_NAME_ENDS)
        yield from reader.space()
        if not key or not (yield from reader.skip("=")):
            return False
        pieces: list[str] = []
        whole = yield from _literal(reader, pieces)
        value = as_json("".join(pieces)) if whole else None
        if value is None:
            return False
        if not begun:
            yield reader.begin(name)
        yield reader.arguments(f"{', ' if begun else '{'}{json.dumps(key)}: {value}")
        begun = True
        reader.attempt()
        yield from reader.skip(",")


def _literal(reader: OutputReader, into: list[str]) -> Generator[None, None, bool]:
    """Appends the text of a value up to the comma or bracket after it. Returns False if there is no such end."""
    expected: list[str] = []
    quote = ""
    escaped = False
    while (yield from reader.more()):
        text, at = reader.text, reader.at
        while at < len(text):
            if escaped:
                at, escaped = at + 1, False
                continue
            found = (_QUOTED_REGEXES[quote] if quote else _SIGN_REGEX).search(text, at)
            if found is None:
                at = len(text)
                break
            at, sign = found.end(), found[0]
            if quote:
                escaped = sign == "\\"
                quote = quote if escaped else ""
            elif sign in _QUOTED_REGEXES:
                quote = sign
            elif sign in _CLOSING_BRACKETS:
                expected.append(_CLOSING_BRACKETS[sign])
            elif not expected and sign in ",)":
                into.append(reader.take(at - 1))
                return True
            elif sign != "," and (not expected or expected.pop() != sign):
                return False
        into.append(reader.take(at))
    return False


# constraining ---------------------------------------------------------------------------------------------------------


def _grammar(form: ListMarkers, use: ToolUse, token_id: TokenId) -> str:
    """Returns the grammar of an answer. An answer that begins like a list of calls must be one, even if optional."""
    start, end = mark(form.start, token_id), mark(form.end, token_id)
    calls, begins, rules, shared = [], [], "", SharedRules()
    for number, tool in enumerate(use.tools):
        begin = literal(f"{tool.name}(")
        calls.append(f"{begin} of_{number}")
        begins.append(f"begin_{number} of_{number}")
        rules += _argument_rules(tool, f"of_{number}", shared) + f"begin_{number}[lazy]: /[ \\n]{{0,2}}\\[/ {begin}\n"
    rules += f"call: {either(calls)}\nbegun: {either(begins)}\n" + shared.written()
    more = ' (", " call)*' if use.parallel else ""
    behind = f'{more} "]" ({end}){"?" if form.bare else ""} SPACE?'
    if use.must:
        return LARK_HEAD + f'start: SPACE? ({start}){"?" if form.bare else ""} "[" call{behind}\n' + rules
    begun = "(begun | tagged" if form.bare else "(tagged"
    return LARK_HEAD + f'start: {begun} "[" call){behind} | TEXT\n' + rules + up_to("tagged", form.start, token_id)


def _argument_rules(tool: Tool, rule: str, shared: SharedRules) -> str:
    """Returns rules by which `rule` is a tool's arguments in the order of its schema, and a closing bracket."""
    root = tool.parameters or {"properties": {}}
    properties = root.get("properties")
    if not isinstance(properties, Mapping):
        one = f"/[A-Za-z_]{{1,64}}=/ {schema({}, tool)}"
        return f'{rule}: ({one} (", " {one})*)? ")"\n'
    values = {name: shared.rule(_value(value, tool)) for name, value in properties.items()}
    return member_rules(rule, values, required_names(root), "=", ", ", ")")


def _value(value: object, tool: Tool) -> str:
    if types_of(value, tool.parameters or {}) == {"boolean"}:
        return '("True" | "False" | "true" | "false")'
    return schema(value, tool, tool.parameters)


# formats --------------------------------------------------------------------------------------------------------------

LIST_FORMATS = (
    # <|tool_call_start|>[f(a=1), g()]<|tool_call_end|>
    pythonic_format("lfm2", ListMarkers("<|tool_call_start|>", "<|tool_call_end|>", bare=False), "<|tool_list_start|>"),
    # [f(a=1), g()], with <|python_start|> and <|python_end|> around it or without
    pythonic_format("pythonic", ListMarkers("<|python_start|>", "<|python_end|>", bare=True), "[func_name"),
)
