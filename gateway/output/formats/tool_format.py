"""Defines a format of tool calls: how it is recognised, read, and constrained."""

from collections.abc import Callable
from typing import NamedTuple

from gateway.output.lark import TokenId
from gateway.output.reader import OutputReader, Steps
from gateway.output.tools import ToolUse


class ToolFormat(NamedTuple):
    """A format in which models call tools."""

    name: str  # value of `--tool-parser`; the same as vLLM's if vLLM has the format
    markers: tuple[str, ...]  # special tokens that must be kept as text
    read: Callable[[OutputReader, ToolUse, str], Steps[None]]  # the text is the end of the prompt
    grammar: Callable[[ToolUse, TokenId], str]  # grammar of a whole answer, in Lark
    words: tuple[str, ...] = ()  # recognise a chat template that writes no calls, if it has all of them
    written: tuple[str, ...] = ()  # in each call, if `read` also reads other formats
    beside: str = ""  # marker that calls need if the answer may also be JSON; "": they always have one
    thinks: bool = False  # whether it also reads and constrains thoughts
