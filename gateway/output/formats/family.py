"""Defines what a family of tool formats is: how it is recognised, read, and constrained."""

from collections.abc import Callable
from typing import NamedTuple

from gateway.output.lark import TokenId
from gateway.output.reader import Reader, Steps
from gateway.output.tools import ToolUse


class Family(NamedTuple):
    """Describes one format in which models call tools."""

    name: str  # of `--tool-parser`; vLLM's where it has the same format
    markers: tuple[str, ...]  # special tokens whose text has to be there, where the tokenizer has them
    recognises: Callable[[str], bool]  # whether a chat template, which has tools, is of this family
    read: Callable[[Reader, ToolUse, str], Steps[None]]  # also given the end of the prompt
    grammar: Callable[[ToolUse, TokenId], str]  # of a whole answer, in Lark
    beside: str = ""  # a marker that calls need where an answer may also be JSON; "": they have one anyway
    thinks: bool = False  # it reads and constrains what a model thinks as well
