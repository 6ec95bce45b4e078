"""Reads calls in the format of GLM-4.5: a name, then keys and values between tags.

<tool_call>weather
<arg_key>place</arg_key>
<arg_value>Oslo</arg_value>
</tool_call>
"""

from gateway.grammar.texts import literal
from gateway.output.formats.family import Family
from gateway.output.formats.tagged import Tags, argument_rules, read_arguments
from gateway.output.lark import HEAD, TokenId, either, mark, start
from gateway.output.reader import Marks, Reader, Steps, kept
from gateway.output.tools import ToolUse

OPEN, CLOSE, KEY = "<tool_call>", "</tool_call>", "<arg_key>"
TAGS = Tags(key=KEY, key_end="</arg_key>", value="<arg_value>", value_end="</arg_value>", end=CLOSE)
_OPEN, _NAME_END = Marks(OPEN), Marks("\n", KEY, CLOSE, OPEN)


def read(reader: Reader, use: ToolUse, prompt: str) -> Steps[None]:
    """Yields content and calls."""
    while (yield from reader.content(_OPEN)):
        reader.attempt(OPEN)
        yield from reader.space()
        words: list[str] = []
        mark = yield from kept(reader.until(_NAME_END), words)
        reader.unread(mark)
        name = "".join(words).strip()
        named = bool(name and mark) and len(name.split()) == 1
        if not (named and (yield from read_arguments(reader, use, name, TAGS))):
            yield from reader.give_up()


def grammar(use: ToolUse, token_id: TokenId) -> str:
    """Returns the grammar of an answer."""
    calls = either(f"{literal(tool.name)} SPACE? tool_{number}" for number, tool in enumerate(use.tools))
    body = f"body: SPACE? ({calls}) {mark(CLOSE, token_id)}\n"
    return HEAD + start(use, OPEN, token_id) + body + argument_rules(use.tools, TAGS, token_id)


GLM45 = Family(
    "glm45",
    markers=(OPEN, CLOSE, KEY, TAGS.key_end, TAGS.value, TAGS.value_end),
    words=(KEY,),
    read=read,
    grammar=grammar,
)
