"""Defines the parts of an answer before an API shapes them: text, reasoning, and calls of tools."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Content(Struct, frozen=True, gc=False):
    text: str


class Reasoning(Struct, frozen=True, gc=False):
    """Text of the model's thoughts."""

    text: str


class CallBegins(Struct, frozen=True, gc=False):
    """Begins a call of a tool. Its arguments follow."""

    call: int  # number of the call in the answer, from 0
    name: str
    custom: bool = False  # its arguments are free text


class CallArguments(Struct, frozen=True, gc=False):
    """The next piece of a call's arguments. All pieces of a call together are one JSON object."""

    call: int
    text: str


Part = Content | Reasoning | CallBegins | CallArguments


class OutputParser(Protocol):
    """Turns the text of one sample, which arrives in pieces, into parts as early as possible.

    The parts add up to the same however the text is cut. Text that is not a call in the model's format is content.
    """

    def push(self, text: str) -> Sequence[Part]: ...

    def flush(self, cut: bool = False) -> Sequence[Part]:
        """Returns the remaining parts at the end of the text. If the text was `cut`, unfinished markup is dropped."""
        ...
