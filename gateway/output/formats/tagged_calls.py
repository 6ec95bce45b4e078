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
from gateway.output.formats.tagged import ArgumentTags, argument_rules, read_arguments
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.lark import LARK_HEAD, TokenId, either, mark, start
from gateway.output.reader import Markers, OutputReader, Steps, into_list
from gateway.output.tools import ToolUse


class TaggedCalls(NamedTuple):
    """The text that a format writes around the names of its calls."""

    section: str  # before the first call, or ""
    section_end: str
    call: str
    name_end: str  # "": the name is one word, which a line break or a tag ends
    tags: ArgumentTags
    several: bool = True  # a section may have several calls
    tokens: tuple[str, ...] | None = None  # special tokens in its markers; None: the section's markers
    words: tuple[str, ...] = ()  # markers that identify its chat templates; (): the first marker


def tagged_format(name: str, form: TaggedCalls) -> ToolFormat:
    opening = Markers(*filter(None, (form.section, form.call)))
    name_end = Markers(form.name_end) if form.name_end else Markers("\n", form.tags.key, form.tags.end, form.call)

    def read(reader: OutputReader, use: ToolUse, prompt: str) -> Steps[None]:
        return _read(reader, use, form, opening, name_end)

    def grammar(use: ToolUse, token_id: TokenId) -> str:
        return _grammar(form, use, token_id)

    markers = tuple(filter(None, (form.section, form.section_end))) if form.tokens is None else form.tokens
    own = tuple(filter(None, (form.section, form.call)))
    return ToolFormat(name, markers, read, grammar, words=form.words or own, written=() if form.words else own)


# reading --------------------------------------------------------------------------------------------------------------


def _read(reader: OutputReader, use: ToolUse, form: TaggedCalls, opening: Markers, name_end: Markers) -> Steps[None]:
    """Yields content and calls. Models may omit the tags of a section."""
    while found := (yield from reader.content(opening)):
        reader.attempt(found)
        if (yield from _call(reader, use, form, found, name_end)):
            yield from reader.end(*filter(None, (form.section_end,)))
        else:
            yield from reader.give_up()


def _call(reader: OutputReader, use: ToolUse, form: TaggedCalls, marker: str, name_end: Markers) -> Steps[bool]:
    if marker == form.section:
        yield from reader.space()
        if not (yield from reader.skip(form.call)):
            return False
    yield from reader.space()
    words: list[str] = []
    named = yield from into_list(reader.until(name_end), words)
    name = "".join(words).strip()
    if not form.name_end:
        reader.unread(named)
        name = name if len(name.split()) == 1 else ""
    return bool(named and name) and (yield from read_arguments(reader, use, name, form.tags))


# constraining ---------------------------------------------------------------------------------------------------------


def _grammar(form: TaggedCalls, use: ToolUse, token_id: TokenId) -> str:
    name_end = mark(form.name_end, token_id) if form.name_end else ""
    end = mark(form.tags.end, token_id)
    calls = either(
        f"{literal(tool.name)} {name_end} SPACE? tool_{number} {end}" for number, tool in enumerate(use.tools)
    )
    rules = f"named: {calls}\n" + argument_rules(use.tools, form.tags, token_id)
    if not form.section:
        return LARK_HEAD + start(use, form.call, token_id) + f"body: {'' if form.name_end else 'SPACE? '}named\n{rules}"
    more = " (SPACE? call)*" if form.several and use.parallel else ""
    body = f"body: SPACE? call{more} SPACE? {mark(form.section_end, token_id)}\n"
    call = f"call: {mark(form.call, token_id)} named\n"
    return LARK_HEAD + start(use, form.section, token_id, again=not form.several) + body + call + rules


# formats --------------------------------------------------------------------------------------------------------------

FUNCTION_TAG = "<function="
_LINE_TAGS = ArgumentTags("<parameter=", ">", "", "</parameter>", "</function>", lines=True)
_GLM_TAGS = ArgumentTags("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>")
_HUNYUAN_TAGS = ArgumentTags(
    "<arg_key:opensource>",
    "</arg_key:opensource>",
    "<arg_value:opensource>",
    "</arg_value:opensource>",
    "</tool_call:opensource>",
)
_HUNYUAN_MARKERS = (
    "<tool_calls:opensource>",
    "</tool_calls:opensource>",
    "<tool_call:opensource>",
    "<tool_sep:opensource>",
)


def _dsml(section: str) -> TaggedCalls:
    """Returns DeepSeek's markup with its calls in this section."""
    mark = "｜DSML｜"  # a token
    tags = ArgumentTags(
        f'<{mark}parameter name="',
        '" string="',
        "",
        f"</{mark}parameter>",
        f"</{mark}invoke>",
        text='true">',
        json='false">',
    )
    return TaggedCalls(f"<{mark}{section}>", f"</{mark}{section}>", f'<{mark}invoke name="', '">', tags, tokens=(mark,))


DEEPSEEK_FORMATS = (
    # <｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>…
    tagged_format("deepseek_v32", _dsml("function_calls")),
    # The same with <｜DSML｜tool_calls>.
    tagged_format("deepseek_v4", _dsml("tool_calls")),
)
TAGGED_FORMATS = (
    # <tool_call>f
    # <arg_key>a</arg_key>
    # <arg_value>1</arg_value>
    # </tool_call>
    tagged_format(
        "glm45",
        TaggedCalls(
            "", "", "<tool_call>", "", _GLM_TAGS, tokens=("<tool_call>", *_GLM_TAGS[:5]), words=(_GLM_TAGS.key,)
        ),
    ),
    # <tool_calls:opensource><tool_call:opensource>f<tool_sep:opensource><arg_key:opensource>a</arg_key:opensource>…
    tagged_format(
        "hunyuan", TaggedCalls(*_HUNYUAN_MARKERS, _HUNYUAN_TAGS, tokens=(*_HUNYUAN_MARKERS, *_HUNYUAN_TAGS[:5]))
    ),
    # <tool_call><function=f><parameter=a>1</parameter></function></tool_call>, all in lines
    tagged_format(
        "qwen3_coder", TaggedCalls("<tool_call>", "</tool_call>", FUNCTION_TAG, ">", _LINE_TAGS, several=False)
    ),
    # <seed:tool_call><function=f><parameter=a>1</parameter></function></seed:tool_call>
    tagged_format(
        "seed_oss",
        TaggedCalls(
            "<seed:tool_call>",
            "</seed:tool_call>",
            FUNCTION_TAG,
            ">",
            _LINE_TAGS._replace(lines=False),
            several=False,
        ),
    ),
    # <minimax:tool_call><invoke name="f"><parameter name="a">1</parameter></invoke></minimax:tool_call>
    tagged_format(
        "minimax_m2",
        TaggedCalls(
            "<minimax:tool_call>",
            "</minimax:tool_call>",
            '<invoke name="',
            '">',
            ArgumentTags('<parameter name="', '">', "", "</parameter>", "</invoke>"),
        ),
    ),
    # <function name="f"><param name="a">1</param></function>
    tagged_format(
        "minicpm5",
        TaggedCalls(
            "",
            "",
            '<function name="',
            '">',
            ArgumentTags('<param name="', '">', "", "</param>", "</function>", quoted=("<![CDATA[", "]]>")),
        ),
    ),
)
