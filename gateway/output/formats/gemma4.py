"""Reads and constrains calls in the format of Gemma 4: JSON with bare names and a special quotation mark.

    <|tool_call>call:weather{days:3,place:<|"|>Oslo<|"|>}<tool_call|>

Arguments are streamed as JSON.
"""

import enum
import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.grammar.texts import literal
from gateway.output.formats.argument_types import ALL_TYPES, STRING_TYPE, as_json, types_of
from gateway.output.formats.call_object import CallOutcome
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.lark import (
    LARK_HEAD,
    NO_ARGUMENTS_SCHEMA,
    TokenId,
    either,
    listed_values,
    mark,
    member_rules,
    required_names,
    schema,
    start,
    up_to,
)
from gateway.output.reader import Markers, OutputReader, Pieces, Steps, as_parts, into_list
from gateway.output.tools import Tool, ToolUse

OPEN, CLOSE, QUOTE, CALL = "<|tool_call>", "<tool_call|>", '<|"|>', "call:"
_OPEN, _ENDS, _QUOTE, _NAME_END = Markers(OPEN), Markers(OPEN, CLOSE), Markers(QUOTE), Markers("{", OPEN, CLOSE)
_KEY_END, _WORD_END = re.compile(r"[:,{}\[\]<]"), re.compile(r"[,{}\[\]<]")
_CLOSING_BRACKETS = {"{": "}", "[": "]"}
_MAX_SCHEMA_DEPTH = 5  # nested schemas; deeper values may be anything


# reading --------------------------------------------------------------------------------------------------------------


def read(reader: OutputReader, use: ToolUse, prompt: str) -> Steps[None]:
    found = yield from reader.content(_OPEN)
    while found:
        reader.attempt(found)
        outcome = yield from _call(reader)
        if outcome is CallOutcome.BROKEN:
            end = yield from as_parts(reader.until(_ENDS), reader.arguments)
            found = end if end == OPEN else (yield from reader.content(_OPEN))
            continue
        if outcome is CallOutcome.NOTHING:
            yield from reader.give_up()
        else:
            yield from reader.end(CLOSE)
        found = yield from reader.content(_OPEN)


def _call(reader: OutputReader) -> Steps[CallOutcome]:
    yield from reader.space()
    words: list[str] = []
    if not (yield from reader.skip(CALL)):
        return CallOutcome.NOTHING
    end = yield from into_list(reader.until(_NAME_END), words)
    name = "".join(words).strip()
    if end != "{" or len(name.split()) != 1:
        reader.unread(end)
        return CallOutcome.NOTHING
    yield reader.begin(name)
    return CallOutcome.CALL if (yield from as_parts(_members(reader), reader.arguments)) else CallOutcome.BROKEN


class _Next(enum.Enum):
    """What may follow."""

    FIRST = enum.auto()  # a value, or the end of an empty object or array
    VALUE = enum.auto()
    COMMA = enum.auto()  # a comma, or the end


def _members(reader: OutputReader) -> Pieces[bool]:
    """Yields an object as JSON, from behind its opening brace on. Returns False if it is broken."""
    yield "{"
    closing, follows = ["}"], _Next.FIRST
    while closing:
        yield from reader.space()
        if follows is not _Next.VALUE and (yield from reader.skip(closing[-1])):
            yield closing.pop()
            follows = _Next.COMMA
            continue
        if follows is _Next.COMMA:
            if not (yield from reader.skip(",")):
                return False
            yield ", "
            follows = _Next.VALUE
            continue
        if closing[-1] == "}" and not (yield from _key(reader)):
            return False
        yield from reader.space()
        if opened := (yield from reader.skip(*_CLOSING_BRACKETS)):
            yield opened
            closing.append(_CLOSING_BRACKETS[opened])
            follows = _Next.FIRST
            continue
        if not (yield from _scalar(reader)):
            return False
        follows = _Next.COMMA
    return True


def _key(reader: OutputReader) -> Pieces[bool]:
    """Yields a name, quoted or bare, as JSON. A name without a colon is yielded unchanged."""
    words: list[str] = []
    if (yield from reader.skip(QUOTE)):
        yield from into_list(reader.until(_QUOTE), words)
    else:
        words.append((yield from reader.word(_KEY_END)))
    yield from reader.space()
    if not (yield from reader.skip(":")):
        yield from filter(None, words)
        return False
    yield f"{json.dumps(''.join(words).strip(), ensure_ascii=False)}: "
    return True


def _scalar(reader: OutputReader) -> Pieces[bool]:
    """Yields a value that is no object or array as JSON. Returns False if the text ends within it."""
    if (yield from reader.skip(QUOTE)):
        yield '"'
        pieces = reader.until(_QUOTE)
        while True:
            try:
                piece = next(pieces)
            except StopIteration as stop:
                if stop.value:
                    yield '"'
                return bool(stop.value)
            yield piece if piece is None else json.dumps(piece, ensure_ascii=False)[1:-1]
    word = yield from reader.word(_WORD_END)
    if word.strip():
        yield as_json(word.strip(), ALL_TYPES)
    return bool(word.strip())


# constraining ---------------------------------------------------------------------------------------------------------


def grammar(use: ToolUse, token_id: TokenId) -> str:
    values = _Values(token_id)
    calls = either(
        f"{literal(f'{CALL}{tool.name}{{')} {values.members(_parameters(tool), tool, 0)}" for tool in use.tools
    )
    body = f"body: ({calls}) {mark(CLOSE, token_id)}\n"
    return LARK_HEAD + start(use, OPEN, token_id) + body + values.written() + up_to("quoted", QUOTE, token_id)


def _parameters(tool: Tool) -> Mapping[str, Any]:
    return NO_ARGUMENTS_SCHEMA if tool.parameters is None else tool.parameters


class _Values:
    """Writes the rules of values, and collects the rules that they refer to."""

    def __init__(self, token_id: TokenId) -> None:
        self._rules: list[str] = []
        self._quote = mark(QUOTE, token_id)

    def written(self) -> str:
        scalar = schema({"type": ["number", "boolean", "null"]}, Tool(""))
        return (
            "".join(self._rules)
            + f'any: {self._quote} quoted | {scalar} | "[" (any ("," any)*)? "]" | "{{" (pair ("," pair)*)? "}}"\n'
            + "pair: /[A-Za-z0-9_-]{1,64}:/ any\n"
        )

    def members(self, object: Mapping[str, Any], tool: Tool, depth: int) -> str:
        """Returns the rule of an object's members and closing brace."""
        properties = object.get("properties")
        if not isinstance(properties, Mapping):
            return '(pair ("," pair)*)? "}"'
        values = {name: self._value(value, tool, depth + 1) for name, value in properties.items()}
        rule = f"members_{len(self._rules)}"
        self._rules.append(member_rules(rule, values, required_names(object), ":", ",", "}"))
        return rule

    def _value(self, given: Any, tool: Tool, depth: int) -> str:
        if not isinstance(given, Mapping) or depth > _MAX_SCHEMA_DEPTH or "$ref" in given:
            return "any"
        types = types_of(given, tool.parameters or {})
        ways = [self._string(given)] if STRING_TYPE in types else []
        if "array" in types:
            ways.append(self._array(given, tool, depth))
        if "object" in types:
            ways.append('"{" ' + self.members(given, tool, depth))
        if scalars := types - {STRING_TYPE, "array", "object"}:
            other = {"type": sorted(scalars)} if ways else given
            ways.append(schema(other, tool, tool.parameters))
        return f"({either(ways)})"

    def _string(self, given: Mapping[str, Any]) -> str:
        texts = [choice for choice in listed_values(given) if isinstance(choice, str)]
        if not texts or not all(texts):
            return f"{self._quote} quoted"
        return f"{self._quote} ({either(map(literal, texts))}) {self._quote}"

    def _array(self, given: Mapping[str, Any], tool: Tool, depth: int) -> str:
        item = self._value(given.get("items"), tool, depth + 1)
        least, most = (count if isinstance(count := given.get(key), int) else None for key in ("minItems", "maxItems"))
        if most == 0:
            return '"[]"'
        more = f"{{{max((least or 0) - 1, 0)},{'' if most is None else most - 1}}}"
        return f'"[" ({item} ("," {item}){more}){"" if least else "?"} "]"'


GEMMA4_FORMAT = ToolFormat("gemma4", (OPEN, CLOSE, QUOTE), read, grammar, words=(OPEN, CLOSE))
