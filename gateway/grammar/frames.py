"""Defines what a gateway and a process that checks grammars tell each other: frames of JSON behind their lengths."""

from typing import Literal

from msgspec import Struct

LENGTH_BYTES = 4  # bytes of a frame's length, little-endian


class GrammarCheck(Struct, frozen=True):
    """Asks whether a grammar can be compiled; `written` says in what."""

    grammar: str
    written: Literal["lark", "any"]  # "any": in Lark or as GBNF


class GrammarVerdict(Struct, frozen=True):
    """Answers a check."""

    refused: Literal["", "invalid_grammar", "grammar_too_complex"] = ""  # why, as an error's code; empty: it is good
    message: str = ""  # the same in words
    grammar: str = ""  # in Lark, where it was asked for in anything else
