"""Encodes events that differ in one text only. Everything around the text is encoded once."""

import secrets
from collections.abc import Callable

import msgspec

encode = msgspec.json.Encoder().encode
_TEXT_PLACEHOLDER = secrets.token_hex(16)  # stands for the text; random, so that no event contains it


class TextTemplate:
    """The bytes of an event before and after its text. `event` makes the event of a text."""

    __slots__ = ("_after", "_before")

    def __init__(self, event: Callable[[str], bytes]) -> None:
        self._before, self._after = event(_TEXT_PLACEHOLDER).split(encode(_TEXT_PLACEHOLDER))

    def of(self, text: str) -> bytes:
        return self._before + encode(text) + self._after
