"""Reads and constrains arguments that are bare text between tags. The schema, or a tag, tells their types.

A call begins with its first argument, or its end. String arguments are streamed, others are sent when they are
complete, all as one JSON object. The object is closed only if the call is: an incomplete call has incomplete arguments,
and the text after it is content.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.grammar.texts import literal
from gateway.output.formats.argument_types import ALL_TYPES, STRING_TYPE, argument_types, as_json, types_of
from gateway.output.lark import (
    NO_ARGUMENTS_SCHEMA,
    SharedRules,
    TokenId,
    either,
    listed_values,
    mark,
    required_names,
    schema,
    up_to,
)
from gateway.output.reader import Markers, OutputReader, Pieces, Steps, as_parts, into_list
from gateway.output.tools import Tool, ToolUse


class ArgumentTags(NamedTuple):
    """The text that a format writes around the arguments of a call."""

    key: str  # before an argument's name
    key_end: str
    value: str  # before its value, or ""
    value_end: str
    end: str  # after the last argument
    lines: bool = False  # each value is on its own line; the line breaks are not part of it
    quoted: tuple[str, str] | None = None  # around a value that contains characters of tags
    text: str = ""  # before a string value, in place of `value`
    json: str = ""  # before any other value, in place of `value`


# reading --------------------------------------------------------------------------------------------------------------


def read_arguments(reader: OutputReader, use: ToolUse, name: str, tags: ArgumentTags) -> Steps[bool]:
    """Reads arguments and the end of the call. Returns whether the call has begun; if not, no part was yielded."""
    begun = False
    while True:
        if begun:
            yield from reader.hold_space()
        else:
            yield from reader.space()
        if (yield from reader.skip(tags.end)):
            if not begun:
                yield reader.begin(name)
            yield reader.arguments("}" if begun else "{}")
            return True
        if begun:
            reader.attempt()
        key, allowed = yield from _key(reader, tags)
        if key is None:
            if begun:
                yield from reader.give_up()
            return begun
        if not begun:
            yield reader.begin(name)
        yield reader.arguments(f"{', ' if begun else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        begun = True
        if not (yield from _value(reader, allowed or argument_types(use.tools, name, key), tags)):
            return True


def _key(reader: OutputReader, tags: ArgumentTags) -> Steps[tuple[str | None, frozenset[str]]]:
    """Returns an argument's name, or None without an argument, and its types if a tag tells them.

    The reader then stands at the value.
    """
    nothing: frozenset[str] = frozenset()
    words: list[str] = []
    if not (yield from reader.skip(tags.key)):
        return None, nothing
    if not (yield from into_list(reader.until(Markers(tags.key_end)), words)):
        return None, nothing
    before = tuple(filter(None, (tags.value, tags.text, tags.json)))
    if not before:
        return "".join(words).strip(), nothing
    yield from reader.space()
    found = yield from reader.skip(*before)
    types = frozenset({STRING_TYPE}) if tags.text and found == tags.text else nothing
    return "".join(words).strip() if found else None, types


def _value(reader: OutputReader, types: frozenset[str], tags: ArgumentTags) -> Steps[bool]:
    """Yields a value as JSON. Returns False if the text ends within it."""
    pieces = reader.until(Markers(tags.value_end))
    if tags.quoted and (yield from reader.skip(tags.quoted[0])):
        pieces = _quoted(reader, tags.quoted[1], tags.value_end)
    if tags.lines:
        yield from reader.skip("\n")
        pieces = _without_last_break(pieces)
    if types == {STRING_TYPE}:
        yield reader.arguments('"')
        whole = yield from as_parts(pieces, lambda piece: reader.arguments(json.dumps(piece, ensure_ascii=False)[1:-1]))
        if whole:
            yield reader.arguments('"')
        return bool(whole)
    words: list[str] = []
    whole = yield from into_list(pieces, words)
    if words or whole:
        yield reader.arguments(as_json("".join(words), types) if whole else "".join(words))
    return bool(whole)


def _quoted(reader: OutputReader, quote: str, end: str) -> Pieces[str]:
    if not (yield from reader.until(Markers(quote))):
        return ""
    yield from reader.space()
    return (yield from reader.skip(end)) or quote


def _without_last_break(pieces: Pieces[str]) -> Pieces[str]:
    held = ""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as stop:
            return str(stop.value)
        if piece is None:
            yield None
            continue
        words = held + piece
        held = "\n" if words.endswith("\n") else ""
        if len(words) > len(held):
            yield words.removesuffix("\n")


# constraining ---------------------------------------------------------------------------------------------------------


def argument_rules(tools: Sequence[Tool], tags: ArgumentTags, token_id: TokenId) -> str:
    """Returns rules by which `tool_0`, `tool_1`, … are the arguments of tools, in the order of the schemas.

    Of a string's schema, only a list of choices is enforced: strings are bare, and end at their tag.
    """
    shared = SharedRules()
    rules = "".join(_tool_rule(f"tool_{number}", tool, tags, shared) for number, tool in enumerate(tools))
    named = ("key", "key_end", "value", "text", "json", "value_end")
    for name, words in ((name, getattr(tags, name)) for name in named):
        rules += f"{name}: {mark(words, token_id)}\n" if words else ""
    return rules + shared.written() + up_to("bare", tags.value_end, token_id)


def _tool_rule(rule: str, tool: Tool, tags: ArgumentTags, shared: SharedRules) -> str:
    parameters = NO_ARGUMENTS_SCHEMA if tool.parameters is None else tool.parameters
    properties, required = parameters.get("properties"), required_names(parameters)
    between = "key_end" + (" SPACE? value" if tags.value else "") + _break(tags)
    if not isinstance(properties, Mapping):
        return f'{rule}: (key /[^<>"]{{1,64}}/ {between} {"text " if tags.text else ""}bare SPACE?)*\n'
    arguments = ""
    for name, value in properties.items():
        opened = f"key {literal(name)} {between}"
        arguments += f" ({opened} {_value_rule(value, tool, tags, shared)} SPACE?)" + ("" if name in required else "?")
    return f"{rule}:{arguments or ' ' + literal('')}\n"


def _break(tags: ArgumentTags) -> str:
    return " /\\n?/" if tags.lines else ""


def _value_rule(value: Any, tool: Tool, tags: ArgumentTags, shared: SharedRules) -> str:
    root = tool.parameters or {}
    types = types_of(value, root)
    text, json = ("text ", "json ") if tags.text else ("", "")
    if STRING_TYPE not in types:
        return shared.rule(f"{json}{schema(value, tool, root)}{_break(tags)} value_end")
    choices = listed_values(value) if isinstance(value, Mapping) else []
    if choices and all(isinstance(choice, str) and choice for choice in choices):
        return shared.rule(f"{text}({either(map(literal, choices))}){_break(tags)} value_end")
    if tags.text and types != {STRING_TYPE}:
        return shared.rule(f"text bare | json {schema(_without_strings(value), tool, root)} value_end")
    return f"{text}bare"


def _without_strings(value: Any) -> Any:
    return {"allOf": [value, {"type": sorted(ALL_TYPES - {STRING_TYPE})}]} if isinstance(value, Mapping) else {}
