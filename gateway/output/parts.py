"""Defines what an answer consists of, before any API gives it a shape: text, reasoning, and calls of tools."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Content(Struct, frozen=True, gc=False):
    """Holds text of the answer itself."""

    text: str


class Reasoning(Struct, frozen=True, gc=False):
    """Holds text that the model has thought before it answers."""

    text: str


class CallBegins(Struct, frozen=True, gc=False):
    """Begins the call of a tool; its arguments follow."""

    call: int  # counts the calls of an answer from 0
    name: str


class CallArguments(Struct, frozen=True, gc=False):
    """Holds the next piece of a call's arguments; all pieces of a call are one JSON object."""

    call: int
    text: str


Part = Content | Reasoning | CallBegins | CallArguments


class OutputParser(Protocol):
    """Takes one sample's text in pieces, and tells the parts of the answer as soon as they are known.

    However the text is cut, the parts add up to the same. What is no call in the model's format is content.
    """

    def push(self, text: str) -> Sequence[Part]:
        """Returns the parts that this text completes, often none."""
        ...

    def flush(self, cut: bool = False) -> Sequence[Part]:
        """Returns what was held back: the text has ended. Of a `cut` text, no markup that had begun is left."""
        ...
