"""Describes DeepSeek's formats, whose markers have full-width bars: that of V3 and R1, and that of V3.1.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
    ```json
    {"place": "Oslo"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Both are read, whichever of them the model's template has; the template says which one answers are held to.
"""

from gateway.grammar.texts import literal
from gateway.output.formats.named_calls import FENCE, Mark, NamedCalls, named_family
from gateway.output.lark import arguments
from gateway.output.tools import Tool

SEPARATOR = "<｜tool▁sep｜>"


def _fenced(tool: Tool, mark: Mark) -> str:
    named, end = literal(f"{tool.name}\n{FENCE}json\n"), literal(f"\n{FENCE}")
    return f"{literal('function')} {mark(SEPARATOR)} {named} {arguments(tool)} {end}"


def _bare(tool: Tool, mark: Mark) -> str:
    return f"{literal(tool.name)} {mark(SEPARATOR)} {arguments(tool)}"


V31 = NamedCalls(
    section="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
    call="<｜tool▁call▁begin｜>",
    separators=(SEPARATOR,),
    call_end="<｜tool▁call▁end｜>",
    rule=_bare,
)
DEEPSEEK_V3 = named_family("deepseek_v3", V31._replace(rule=_fenced, between="SPACE?"), f"{FENCE}json")
DEEPSEEK_V31 = named_family("deepseek_v31", V31)
