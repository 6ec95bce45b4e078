"""Defines what a family of tool formats is: how it is recognised, read, and constrained."""

from collections.abc import Callable
from typing import NamedTuple

from gateway.output.lark import TokenId
from gateway.output.reader import OutputReader, Steps
from gateway.output.tools import ToolUse


class ToolFormat(NamedTuple):
    """Describes one format in which models call tools."""

    name: str  # of `--tool-parser`; vLLM's where it has the same format
    markers: tuple[str, ...]  # special tokens whose text has to be there, where the tokenizer has them
    read: Callable[[OutputReader, ToolUse, str], Steps[None]]  # also given the end of the prompt
    grammar: Callable[[ToolUse, TokenId], str]  # of a whole answer, in Lark
    words: tuple[str, ...] = ()  # all of which a chat template has that writes no calls but tells the model how to
    written: tuple[str, ...] = ()  # all of which calls have, where `read` reads calls of other formats as well
    beside: str = ""  # a marker that calls need where an answer may also be JSON; "": they have one anyway
    thinks: bool = False  # it reads and constrains what a model thinks as well
