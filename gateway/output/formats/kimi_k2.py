"""Describes the format of Kimi K2: calls in a section, whose names are ids that count them.

<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>
<|tool_calls_section_end|>
"""

import re

from gateway.grammar.texts import literal
from gateway.output.formats.named_calls import Mark, NamedCalls, named_family
from gateway.output.lark import arguments
from gateway.output.tools import Tool

SEPARATOR = "<|tool_call_argument_begin|>"


def _numbered(tool: Tool, mark: Mark) -> str:
    return f"{literal(f'functions.{tool.name}:')} /[0-9]{{1,3}}/ {mark(SEPARATOR)} {arguments(tool)}"


KIMI_K2 = named_family(
    "kimi_k2",
    NamedCalls(
        section="<|tool_calls_section_begin|>",
        section_end="<|tool_calls_section_end|>",
        call="<|tool_call_begin|>",
        separators=(SEPARATOR,),
        call_end="<|tool_call_end|>",
        rule=_numbered,
        named=re.compile(r"(?:functions\.)?(\S+?)(?::\d+)?"),
    ),
)
