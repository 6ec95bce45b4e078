"""Reads calls that are JSON objects, `{"name": …, "arguments": {…}}`, while they arrive.

Arguments are passed on as they are written, piece by piece. Only strings and brackets are parsed: whether the JSON is
valid is known only at its end, when most of it has been sent. So a call whose arguments turn out to be broken stays a
call with broken arguments, as in OpenAI's API, whose clients must expect that. An error before the arguments makes the
text no call.
"""

import enum
import json
import re
from collections.abc import Container, Generator

from gateway.output.reader import OutputReader, Pieces, Steps, as_parts, into_list

ARGUMENT_KEYS = ("arguments", "parameters")
NO_ARGUMENTS = "{}"

_STRUCTURE_REGEX = re.compile(r'["{}\[\]]')
_STRING_REGEX = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,:\]}]")
_CLOSING_BRACKETS = {"{": "}", "[": "]"}


class CallOutcome(enum.Enum):
    """What was read."""

    NOTHING = enum.auto()  # no call: no part was yielded
    CALL = enum.auto()
    BROKEN = enum.auto()  # a call whose arguments are cut off or not JSON


def call_object(
    reader: OutputReader, known: Container[str] | None = None, name_key: str = "name"
) -> Steps[CallOutcome]:
    """Reads a call from its opening brace on. The member `name_key` has the tool's name.

    Calls of tools that are not in `known` are no calls; with None, any name is accepted.
    """
    if not (yield from reader.skip("{")):
        return CallOutcome.NOTHING
    name: str | None = None
    early: str | None = None  # arguments before the name
    begun = False
    while True:
        yield from reader.space()
        key = yield from string(reader)
        if key is None or not (yield from _colon(reader)):
            return CallOutcome.CALL if begun else CallOutcome.NOTHING
        if key == name_key and name is None:
            name = yield from string(reader)
            if not name or (known is not None and name not in known):
                return CallOutcome.NOTHING
        elif key in ARGUMENT_KEYS and not begun and early is None:
            if name is not None and (yield from reader.comes("{")):
                begun = True
                if (yield from arguments_value(reader, name)) is CallOutcome.BROKEN:
                    return CallOutcome.BROKEN
            else:
                early = yield from _whole_arguments(reader)
                if early is None:
                    return CallOutcome.NOTHING
        else:  # an id or another additional member
            yield from into_list(value(reader), [])
        yield from reader.space()
        if (yield from reader.skip(",")):
            continue
        closed = yield from reader.skip("}")
        if not begun:
            if name is None or (early is None and not closed):
                return CallOutcome.NOTHING
            yield reader.begin(name)
            yield reader.arguments(early or NO_ARGUMENTS)
        return CallOutcome.CALL


def keyed_call_object(reader: OutputReader) -> Steps[CallOutcome]:
    """Reads a call from its opening brace on, whose only member is the tool's name with the arguments."""
    if not (yield from reader.skip("{")):
        return CallOutcome.NOTHING
    yield from reader.space()
    name = yield from string(reader)
    if not name or not (yield from _colon(reader)):
        return CallOutcome.NOTHING
    outcome = yield from arguments_value(reader, name)
    if outcome is CallOutcome.CALL:
        yield from reader.space()
        yield from reader.skip("}")
    return outcome


def arguments_value(reader: OutputReader, name: str) -> Steps[CallOutcome]:
    """Begins a call of this name, and reads its arguments, which must be an object."""
    if not (yield from reader.comes("{")):
        return CallOutcome.NOTHING
    yield reader.begin(name)
    return CallOutcome.CALL if (yield from as_parts(value(reader), reader.arguments)) else CallOutcome.BROKEN


def value(reader: OutputReader) -> Pieces[bool]:
    """Yields the text of a JSON value. Returns False if it is broken or the text ends within it."""
    if not (yield from reader.more()):
        return False
    first = reader.text[reader.at]
    if first in _CLOSING_BRACKETS:
        return (yield from _nested(reader))
    if first == '"':
        return (yield from _quoted(reader))
    while True:  # a number or a word
        end = _SCALAR_END.search(reader.text, reader.at)
        if (place := end.start() if end else len(reader.text)) > reader.at:
            yield reader.take(place)
        if end or not (yield from reader.more()):
            return end is not None


def string(reader: OutputReader) -> Generator[None, None, str | None]:
    """Returns the JSON string that follows, or None if there is none."""
    if not (yield from reader.comes('"')):
        return None
    pieces: list[str] = []
    if not (yield from into_list(_quoted(reader), pieces)):
        return None
    return _decoded("".join(pieces))


def _decoded(text: str) -> str | None:
    try:
        found = json.loads(text, strict=False)  # models do not always escape line breaks
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def _colon(reader: OutputReader) -> Generator[None, None, bool]:
    yield from reader.space()
    found = yield from reader.skip(":")
    yield from reader.space()
    return bool(found)


def _whole_arguments(reader: OutputReader) -> Generator[None, None, str | None]:
    """Returns arguments that cannot be streamed: before the name, null, or JSON in a string."""
    pieces: list[str] = []
    if not (yield from into_list(value(reader), pieces)):
        return None
    text = "".join(pieces)
    if text.startswith('"'):
        text = (_decoded(text) or "").strip() or "null"
    if text == "null":
        return NO_ARGUMENTS
    return text if text.startswith("{") else None


def _nested(reader: OutputReader) -> Pieces[bool]:
    """Yields an object or an array up to its closing bracket."""
    expected: list[str] = []
    inside = escaped = False
    while True:
        text, at = reader.text, reader.at
        while at < len(text):
            if escaped:
                at, escaped = at + 1, False
                continue
            found = (_STRING_REGEX if inside else _STRUCTURE_REGEX).search(text, at)
            if found is None:
                at = len(text)
                break
            at, sign = found.end(), found[0]
            if sign == '"':
                inside = not inside
            elif sign == "\\":
                escaped = True
            elif sign in _CLOSING_BRACKETS:
                expected.append(_CLOSING_BRACKETS[sign])
            elif expected.pop() != sign:
                at -= 1  # an unmatched bracket is not part of the value
                if at > reader.at:
                    yield reader.take(at)
                return False
            elif not expected:
                yield reader.take(at)
                return True
        yield reader.take(at)
        if not (yield from reader.more()):
            return False


def _quoted(reader: OutputReader) -> Pieces[bool]:
    yield reader.take(reader.at + 1)
    escaped = False
    while (yield from reader.more()):
        text, at = reader.text, reader.at
        while at < len(text):
            if escaped:
                at, escaped = at + 1, False
                continue
            found = _STRING_REGEX.search(text, at)
            if found is None:
                at = len(text)
                break
            at, escaped = found.end(), found[0] == "\\"
            if not escaped:
                yield reader.take(at)
                return True
        yield reader.take(at)
    return False
