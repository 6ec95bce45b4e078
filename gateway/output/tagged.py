"""Reads and constrains calls whose arguments stand between tags as bare text: the schema says what they are.

Qwen3-Coder and GLM write so. A call begins with its first argument, or its end. Arguments that are strings leave as
they come, others when they are whole, all as one JSON object. It is closed only if the call is: one that breaks off has
arguments that break off, and what follows is content.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.output.argument_types import STRING, TYPES, argument_types, as_json, types_of
from gateway.output.lark import TokenId, either, mark, schema, text, up_to
from gateway.output.reader import Marks, Pieces, Reader, Steps, kept, told
from gateway.output.tools import Tool, ToolUse


class Tags(NamedTuple):
    """Holds what a format writes around the arguments of a call."""

    key: str  # before an argument's name
    key_end: str
    value: str  # before its value; "": nothing
    value_end: str
    end: str  # behind the last argument
    lines: bool  # values stand on lines of their own, whose breaks are not part of them


# reading --------------------------------------------------------------------------------------------------------------


def read_arguments(reader: Reader, use: ToolUse, name: str, tags: Tags) -> Steps[bool]:
    """Reads arguments and the end of the call. Returns whether it has begun: else nothing was told of it."""
    types = argument_types(use.tools, name)
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
        key = yield from _key(reader, tags)
        if key is None:
            if begun:
                yield from reader.give_up()
            return begun
        if not begun:
            yield reader.begin(name)
        yield reader.arguments(f"{', ' if begun else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        begun = True
        if not (yield from _value(reader, types.get(key, TYPES), tags)):
            return True


def _key(reader: Reader, tags: Tags) -> Steps[str | None]:
    """Returns an argument's name, up to where its value begins, or None if there is none."""
    words: list[str] = []
    if not (yield from reader.skip(tags.key)):
        return None
    if not (yield from kept(reader.until(Marks(tags.key_end)), words)):
        return None
    if tags.value:
        yield from reader.space()
        if not (yield from reader.skip(tags.value)):
            return None
    return "".join(words).strip()


def _value(reader: Reader, types: frozenset[str], tags: Tags) -> Steps[bool]:
    """Yields a value as JSON. Returns False if the text ends within it."""
    pieces = reader.until(Marks(tags.value_end))
    if tags.lines:
        yield from reader.skip("\n")
        pieces = _without_last_break(pieces)
    if types == {STRING}:
        yield reader.arguments('"')
        whole = yield from told(pieces, lambda piece: reader.arguments(json.dumps(piece, ensure_ascii=False)[1:-1]))
        if whole:
            yield reader.arguments('"')
        return bool(whole)
    words: list[str] = []
    whole = yield from kept(pieces, words)
    if words or whole:
        yield reader.arguments(as_json("".join(words), types) if whole else "".join(words))
    return bool(whole)


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


def argument_rules(tool: Tool, rule: str, tags: Tags, token_id: TokenId) -> str:
    """Returns rules by which `rule` is a tool's arguments, in the order of its schema.

    Of texts only a list of choices is kept to: they are bare, and end at their tag.
    """
    parameters = tool.parameters or {"properties": {}}
    properties, required = parameters.get("properties"), parameters.get("required") or []
    if not isinstance(properties, Mapping):
        return f"{rule}: ({_any_argument(rule, tags, token_id)})*\n" + up_to(f"{rule}_any", tags.value_end, token_id)
    rules, arguments = "", []
    for number, (name, value) in enumerate(properties.items()):
        own = f"{rule}_{number}"
        rules += _value_rules(own, value, tool, tags, token_id)
        opened = _opened(text(name), tags, token_id)
        arguments.append(f"({opened} {own} SPACE?)" + ("" if name in required else "?"))
    return f"{rule}: {' '.join(arguments) or text('')}\n" + rules


def _opened(name: str, tags: Tags, token_id: TokenId) -> str:
    """Returns what stands before a value."""
    opened = f"{mark(tags.key, token_id)} {name} {mark(tags.key_end, token_id)}"
    return opened + (f" SPACE? {mark(tags.value, token_id)}" if tags.value else "") + _break(tags)


def _break(tags: Tags) -> str:
    """Returns the break of a line beside a value that is no part of it."""
    return " /\\n?/" if tags.lines else ""


def _any_argument(rule: str, tags: Tags, token_id: TokenId) -> str:
    return f"{_opened('/[^<>]{1,64}/', tags, token_id)} {rule}_any SPACE?"


def _value_rules(rule: str, value: Any, tool: Tool, tags: Tags, token_id: TokenId) -> str:
    """Returns rules by which `rule` is a value with what ends it."""
    root = tool.parameters or {}
    types = types_of(value, root)
    end = f"{_break(tags)} {mark(tags.value_end, token_id)}"
    if STRING not in types:
        return f"{rule}: {schema(value, tool.strict, root)} {end}\n"
    choices = value.get("enum", [value["const"]] if "const" in value else None) if isinstance(value, Mapping) else None
    if choices and all(isinstance(choice, str) and choice for choice in choices):
        return f"{rule}: ({either(map(text, choices))}) {end}\n"
    return up_to(rule, tags.value_end, token_id)
