"""Defines the tools that an answer may call, as far as reading and constraining an answer needs them."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Tool(NamedTuple):
    """Holds a tool's name and what its arguments have to be."""

    name: str
    parameters: Mapping[str, Any] | None = None  # a JSON schema of an object; None: it takes no arguments
    strict: bool = False  # a keyword of the schema that cannot be kept to is an error; else it is left out
    closes: bool = True  # properties that the schema does not name may not come unless it says so


class ToolUse(NamedTuple):
    """Says which tools an answer may call, and whether it has to.

    `tool_choice` "auto" is `must=False`, "required" is `must=True`; a named tool is `must=True` with that tool alone.
    """

    tools: tuple[Tool, ...]
    must: bool = False
    parallel: bool = True  # False: one call at most
