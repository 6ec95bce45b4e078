"""Tells what is wrong with a text that was to be JSON by a schema, or to match a regex."""

import json
import re
import unicodedata
from datetime import datetime, time

from jsonschema import Draft202012Validator, FormatChecker

FORMATS = FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
"""Of those that are left out jsonschema's own checks want other packages."""


def is_time(value: object) -> bool:
    """Judges by RFC 3339, which has leap seconds, and small letters too."""
    return not isinstance(value, str) or bool(time.fromisoformat(value.upper().replace(":60", ":59")))


def is_date_time(value: object) -> bool:
    return not isinstance(value, str) or bool(datetime.fromisoformat(value.upper().replace(":60", ":59")))


def is_duration(value: object) -> bool:
    found = re.fullmatch(r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)", str(value))
    return not isinstance(value, str) or found is not None


for name, check in (("time", is_time), ("date-time", is_date_time), ("duration", is_duration)):
    FORMATS.checks(name, ValueError)(check)


def wrong_json(schema: object, text: str) -> str:
    """Says what is wrong; empty: nothing is."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"{error}: {text[:80]}"
    checker = Draft202012Validator(schema, format_checker=FORMATS)
    return "; ".join(f"{error.message} at {list(error.path)}" for error in checker.iter_errors(value))


def wrong_text(regex: str, text: str) -> str:
    # Letters that are younger than Python's tables of them are none to it.
    known = "".join("x" if unicodedata.category(character) == "Cn" else character for character in text)
    return "" if re.fullmatch(regex, known) else f"does not match: {text[:80]!r}"
