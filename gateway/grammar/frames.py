"""Defines the messages between a gateway and a process that checks grammars: JSON with its length in front."""

from typing import Literal

from msgspec import Struct

LENGTH_BYTES = 4  # a frame's length is a little-endian integer


class GrammarCheck(Struct, frozen=True):
    """Asks whether a grammar can be compiled."""

    grammar: str
    written: Literal["lark", "any"]  # "any": Lark or GBNF


class GrammarVerdict(Struct, frozen=True):
    """Answer to a check."""

    refused: Literal["", "invalid_grammar", "grammar_too_complex"] = ""  # error code; "": the grammar is good
    message: str = ""  # the error in words
    grammar: str = ""  # in Lark, if the check had another language
