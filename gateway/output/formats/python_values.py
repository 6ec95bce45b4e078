"""Turns Python's literals into JSON, token by token in linear time, without evaluating anything."""

import json
import re
from collections.abc import Iterator

_TOKEN_REGEX = re.compile(
    r"""\s*(?:
        (?P<string>'[^'\\]*(?:\\.[^'\\]*)*' | "[^"\\]*(?:\\.[^"\\]*)*")
      | (?P<number>-?(?:\d[\d_]*)?\.?\d[\d_]*\.?(?:[eE][+-]?\d+)?)
      | (?P<word>[A-Za-z]+)
      | (?P<sign>[\[\]{}():,])
    )\s*""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE_REGEX = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_JSON_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_JSON_BRACKETS = {"(": "[", ")": "]"}


def as_json(text: str) -> str | None:
    """Returns a literal as JSON; None for anything else than a literal.

    Literals are strings, numbers, True, False and None (also in JSON's spelling), lists, tuples and dictionaries.
    """
    try:
        found = "".join(_translated(text))
        json.loads(found)
    except (ValueError, RecursionError):
        return None
    return found


def _translated(text: str) -> Iterator[str]:
    comma = ""
    at = 0
    while at < len(text):
        token = _TOKEN_REGEX.match(text, at)
        if token is None:
            raise ValueError(f"no literal at {at}")
        at = token.end()
        sign = token["sign"]
        if sign == ",":
            if comma:
                raise ValueError("two commas")
            comma = ", "
            continue
        if comma and not (sign and sign in "])}"):  # a trailing comma has no effect
            yield comma
        comma = ""
        if sign:
            yield ": " if sign == ":" else _JSON_BRACKETS.get(sign, sign)
        elif token["string"]:
            yield json.dumps(_unescaped(token["string"][1:-1]), ensure_ascii=False)
        elif token["word"]:
            yield _JSON_WORDS.get(token["word"], "?")  # not valid JSON either
        else:
            yield token["number"].replace("_", "")


def _unescaped(text: str) -> str:
    """Returns a string's text. Two escapes may be the surrogate halves of one character, as in JSON."""
    if "\\" not in text:
        return text
    return _ESCAPE_REGEX.sub(_character, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code:
        return chr(int(code, 16)) if int(code, 16) < 0x110000 else "\ufffd"
    return _ESCAPED_CHARACTERS.get(escape[4], escape[4] if escape[4] in "\\'\"/" else escape[0])
