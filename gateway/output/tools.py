"""Defines the tools that an answer may call, as far as parsers and grammars need them."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Tool(NamedTuple):
    """A tool with the schema of its arguments."""

    name: str
    parameters: Mapping[str, Any] | None = None  # a JSON schema of an object; None: no arguments
    strict: bool = False  # unsupported keywords of the schema are errors; else they are ignored
    closes: bool = True  # unnamed properties are forbidden unless the schema allows them


class ToolUse(NamedTuple):
    """The tools that an answer may call, or must call (`must`).

    `tool_choice` "auto" is `must=False`, "required" is `must=True`; a named tool is `must=True` with that tool alone.
    """

    tools: tuple[Tool, ...]
    must: bool = False
    parallel: bool = True  # False: at most one call
