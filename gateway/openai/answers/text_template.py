"""Encodes events that differ in one text only: everything around it is encoded once."""

import secrets
from collections.abc import Callable

import msgspec

encode = msgspec.json.Encoder().encode
_TEXT_PLACEHOLDER = secrets.token_hex(16)  # stands for the text; nobody can have it in an event


class TextTemplate:
    """Holds what is before the text of an event and behind it; `event` makes the event of a text."""

    __slots__ = ("_after", "_before")

    def __init__(self, event: Callable[[str], bytes]) -> None:
        self._before, self._after = event(_TEXT_PLACEHOLDER).split(encode(_TEXT_PLACEHOLDER))

    def of(self, text: str) -> bytes:
        """Returns what `event` would."""
        return self._before + encode(text) + self._after
