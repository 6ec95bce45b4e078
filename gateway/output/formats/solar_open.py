"""Describes the format of Solar Open: calls in a section, each with an id, a name and arguments.

<|tool_calls|><|tool_call:begin|>id<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|><|calls|>
"""

from gateway.grammar.texts import literal
from gateway.output.formats.named_calls import Mark, NamedCalls, named_family
from gateway.output.lark import arguments
from gateway.output.tools import Tool

NAME, ARGUMENTS = "<|tool_call:name|>", "<|tool_call:args|>"


def _with_id(tool: Tool, mark: Mark) -> str:
    return f"/[A-Za-z0-9_-]{{1,40}}/ {mark(NAME)} {literal(tool.name)} {mark(ARGUMENTS)} {arguments(tool)}"


SOLAR_OPEN = named_family(
    "solar_open",
    NamedCalls(
        section="<|tool_calls|>",
        section_end="<|calls|>",
        call="<|tool_call:begin|>",
        separators=(NAME, ARGUMENTS),
        call_end="<|tool_call:end|>",
        rule=_with_id,
    ),
)
