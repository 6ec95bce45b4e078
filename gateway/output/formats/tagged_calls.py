"""Reads and constrains calls whose arguments stand between tags. Some formats group calls in a section.

<tool_call>
<function=weather>
<parameter=place>
Oslo
</parameter>
</function>
</tool_call>
"""

from typing import NamedTuple

from gateway.grammar.texts import literal
from gateway.output.formats.family import Family
from gateway.output.formats.tagged import Tags, argument_rules, read_arguments
from gateway.output.lark import HEAD, TokenId, either, mark, start
from gateway.output.reader import Marks, Reader, Steps, kept
from gateway.output.tools import ToolUse


class TaggedCalls(NamedTuple):
    """Holds what a format writes around the names of its calls."""

    section: str  # before the first call; "": nothing
    section_end: str
    call: str
    name_end: str  # "": the name is one word, which a line break or a tag ends
    tags: Tags
    several: bool = True  # a section may have several calls
    tokens: tuple[str, ...] | None = None  # special tokens in its markers; None: the section's markers
    words: tuple[str, ...] = ()  # that tell its chat templates from those of other formats; (): the first marker


def tagged_family(name: str, form: TaggedCalls) -> Family:
    """Returns the family of a format."""
    opening = Marks(*filter(None, (form.section, form.call)))
    name_end = Marks(form.name_end) if form.name_end else Marks("\n", form.tags.key, form.tags.end, form.call)

    def read(reader: Reader, use: ToolUse, prompt: str) -> Steps[None]:
        return _read(reader, use, form, opening, name_end)

    def grammar(use: ToolUse, token_id: TokenId) -> str:
        return _grammar(form, use, token_id)

    markers = tuple(filter(None, (form.section, form.section_end))) if form.tokens is None else form.tokens
    own = tuple(filter(None, (form.section, form.call)))
    return Family(name, markers, read, grammar, words=form.words or own, written=() if form.words else own)


# reading --------------------------------------------------------------------------------------------------------------


def _read(reader: Reader, use: ToolUse, form: TaggedCalls, opening: Marks, name_end: Marks) -> Steps[None]:
    """Yields content and calls. The tags around calls may be missing, as models leave them away."""
    while found := (yield from reader.content(opening)):
        reader.attempt(found)
        if (yield from _call(reader, use, form, found, name_end)):
            yield from reader.end(*filter(None, (form.section_end,)))
        else:
            yield from reader.give_up()


def _call(reader: Reader, use: ToolUse, form: TaggedCalls, found: str, name_end: Marks) -> Steps[bool]:
    if found == form.section:
        yield from reader.space()
        if not (yield from reader.skip(form.call)):
            return False
    yield from reader.space()
    words: list[str] = []
    named = yield from kept(reader.until(name_end), words)
    name = "".join(words).strip()
    if not form.name_end:
        reader.unread(named)
        name = name if len(name.split()) == 1 else ""
    return bool(named and name) and (yield from read_arguments(reader, use, name, form.tags))


# constraining ---------------------------------------------------------------------------------------------------------


def _grammar(form: TaggedCalls, use: ToolUse, token_id: TokenId) -> str:
    """Returns the grammar of an answer."""
    name_end = mark(form.name_end, token_id) if form.name_end else ""
    end = mark(form.tags.end, token_id)
    calls = either(
        f"{literal(tool.name)} {name_end} SPACE? tool_{number} {end}" for number, tool in enumerate(use.tools)
    )
    rules = f"named: {calls}\n" + argument_rules(use.tools, form.tags, token_id)
    if not form.section:
        return HEAD + start(use, form.call, token_id) + f"body: {'' if form.name_end else 'SPACE? '}named\n{rules}"
    more = " (SPACE? call)*" if form.several and use.parallel else ""
    body = f"body: SPACE? call{more} SPACE? {mark(form.section_end, token_id)}\n"
    call = f"call: {mark(form.call, token_id)} named\n"
    return HEAD + start(use, form.section, token_id, again=not form.several) + body + call + rules


def _xml(space: str) -> Tags:
    """Returns tags whose names stand in attributes, in a namespace."""
    return Tags(f'<{space}parameter name="', '">', "", f"</{space}parameter>", f"</{space}invoke>")


FUNCTION = "<function="
_LINES = Tags("<parameter=", ">", "", "</parameter>", "</function>", lines=True)

# <tool_call><function=f><parameter=a>1</parameter></function></tool_call>, all in lines
QWEN3_CODER = tagged_family(
    "qwen3_coder", TaggedCalls("<tool_call>", "</tool_call>", FUNCTION, ">", _LINES, several=False)
)
# <tool_call>f
# <arg_key>a</arg_key>
# <arg_value>1</arg_value>
# </tool_call>
_GLM = Tags("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>")
GLM45 = tagged_family(
    "glm45",
    TaggedCalls("", "", "<tool_call>", "", _GLM, tokens=("<tool_call>", *_GLM[:5]), words=(_GLM.key,)),
)
# <seed:tool_call><function=f><parameter=a>1</parameter></function></seed:tool_call>
SEED_OSS = tagged_family(
    "seed_oss",
    TaggedCalls("<seed:tool_call>", "</seed:tool_call>", FUNCTION, ">", _LINES._replace(lines=False), several=False),
)
# <minimax:tool_call><invoke name="f"><parameter name="a">1</parameter></invoke></minimax:tool_call>
MINIMAX_M2 = tagged_family(
    "minimax_m2", TaggedCalls("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', '">', _xml(""))
)
# <function name="f"><param name="a">1</param></function>
MINICPM5 = tagged_family(
    "minicpm5",
    TaggedCalls(
        "",
        "",
        '<function name="',
        '">',
        Tags('<param name="', '">', "", "</param>", "</function>", quoted=("<![CDATA[", "]]>")),
    ),
)
# <tool_calls:opensource><tool_call:opensource>f<tool_sep:opensource><arg_key:opensource>a</arg_key:opensource>…
_HUNYUAN = Tags(
    "<arg_key:opensource>",
    "</arg_key:opensource>",
    "<arg_value:opensource>",
    "</arg_value:opensource>",
    "</tool_call:opensource>",
)
HUNYUAN = tagged_family(
    "hunyuan",
    TaggedCalls(
        "<tool_calls:opensource>",
        "</tool_calls:opensource>",
        "<tool_call:opensource>",
        "<tool_sep:opensource>",
        _HUNYUAN,
        tokens=(
            "<tool_calls:opensource>",
            "</tool_calls:opensource>",
            "<tool_call:opensource>",
            "<tool_sep:opensource>",
            *_HUNYUAN[:5],
        ),
    ),
)


def _dsml(section: str) -> TaggedCalls:
    mark = "｜DSML｜"  # a token
    tags = Tags(
        f'<{mark}parameter name="',
        '" string="',
        "",
        f"</{mark}parameter>",
        f"</{mark}invoke>",
        text='true">',
        json='false">',
    )
    return TaggedCalls(f"<{mark}{section}>", f"</{mark}{section}>", f'<{mark}invoke name="', '">', tags, tokens=(mark,))


# <｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>…
DEEPSEEK_V32 = tagged_family("deepseek_v32", _dsml("function_calls"))
# The same with <｜DSML｜tool_calls>.
DEEPSEEK_V4 = tagged_family("deepseek_v4", _dsml("tool_calls"))
