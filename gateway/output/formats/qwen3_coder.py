"""Reads calls in the format of Qwen3-Coder: tags whose names follow an equals sign.

<tool_call>
<function=weather>
<parameter=place>
Oslo
</parameter>
</function>
</tool_call>
"""

from gateway.grammar.texts import literal
from gateway.output.formats.family import Family
from gateway.output.formats.tagged import Tags, argument_rules, read_arguments
from gateway.output.lark import HEAD, TokenId, either, mark, start
from gateway.output.reader import Marks, Reader, Steps, kept
from gateway.output.tools import ToolUse

OPEN, CLOSE, FUNCTION = "<tool_call>", "</tool_call>", "<function="
TAGS = Tags(key="<parameter=", key_end=">", value="", value_end="</parameter>", end="</function>", lines=True)
_OPEN, _NAME_END = Marks(OPEN, FUNCTION), Marks(">")


def read(reader: Reader, use: ToolUse, prompt: str) -> Steps[None]:
    """Yields content and calls. The outer tags may be missing, as models leave them away."""
    while found := (yield from reader.content(_OPEN)):
        reader.attempt(found)
        if (yield from _call(reader, use, found)):
            yield from reader.end(CLOSE)
        else:
            yield from reader.give_up()


def _call(reader: Reader, use: ToolUse, found: str) -> Steps[bool]:
    if found == OPEN:
        yield from reader.space()
        if not (yield from reader.skip(FUNCTION)):
            return False
    words: list[str] = []
    named = yield from kept(reader.until(_NAME_END), words)
    name = "".join(words).strip()
    return bool(named and name) and (yield from read_arguments(reader, use, name, TAGS))


def grammar(use: ToolUse, token_id: TokenId) -> str:
    """Returns the grammar of an answer."""
    calls = either(
        f"{literal(f'{FUNCTION}{tool.name}>')} SPACE? tool_{number} {literal(TAGS.end)}"
        for number, tool in enumerate(use.tools)
    )
    body = f"body: SPACE? ({calls}) SPACE? {mark(CLOSE, token_id)}\n"
    return HEAD + start(use, OPEN, token_id) + body + argument_rules(use.tools, TAGS, token_id)


QWEN3_CODER = Family(
    "qwen3_coder",
    markers=(OPEN, CLOSE),
    recognises=lambda template: FUNCTION in template and OPEN in template,
    read=read,
    grammar=grammar,
)
