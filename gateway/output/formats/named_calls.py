"""Reads and constrains calls that are a name and a JSON object between markers. Some formats group calls in a section.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>…

Another word may stand before the name, such as the call's id or the tool's kind. At the end are the formats.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from gateway.grammar.texts import literal
from gateway.output.formats.call_object import CallOutcome, arguments_value
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.lark import LARK_HEAD, TokenId, arguments, either, mark, start
from gateway.output.reader import Markers, OutputReader, Steps, as_parts, into_list
from gateway.output.tools import Tool, ToolUse

CODE_FENCE = "```"
MarkerRule = Callable[[str], str]  # returns the rule of a marker


class NamedCalls(NamedTuple):
    """The text that a format writes around the names and arguments of its calls."""

    section: str  # before the first call, or ""
    section_end: str
    call: str
    separators: tuple[str, ...]  # after each word before the arguments
    call_end: str
    rule: Callable[[Tool, MarkerRule], str]  # rule of the text between `call` and `call_end`
    between: str = ""  # rule of the text between calls
    tokens: bool = True  # whether the markers are special tokens
    named: re.Pattern[str] = re.compile(r"(\S+)")  # finds the tool's name in the last word before the arguments


def named_format(name: str, form: NamedCalls, *written: str) -> ToolFormat:
    """Returns the format. See `ToolFormat` for `written`."""
    reading = _Reading(form)

    def read(reader: OutputReader, use: ToolUse, prompt: str) -> Steps[None]:
        return reading.read(reader)

    def grammar(use: ToolUse, token_id: TokenId) -> str:
        return _grammar(form, use, token_id)

    markers = tuple(filter(None, (form.section, form.section_end, form.call, *form.separators, form.call_end)))
    own = (form.section or form.call,)
    return ToolFormat(name, markers if form.tokens else (), read, grammar, words=own, written=(*own, *written))


class _Reading:
    """Reads answers in one format."""

    def __init__(self, form: NamedCalls) -> None:
        self._form = form
        ends = tuple(filter(None, (form.call_end, form.section_end, form.call)))
        self._open = Markers(*filter(None, (form.section, form.call)))
        self._call_ends = Markers(*ends)
        self._head_ends = Markers(*form.separators, *ends)
        self._name_ends = Markers(*dict.fromkeys((*form.separators, "\n", "{")), *ends)

    def read(self, reader: OutputReader) -> Steps[None]:
        form = self._form
        found = yield from reader.content(self._open)
        while found:
            reader.attempt(found)
            outcome = yield from self._call(reader, found)
            if outcome is CallOutcome.BROKEN:
                end = yield from as_parts(reader.until(self._call_ends), reader.arguments)
                if end == form.call_end:
                    yield from reader.end(*filter(None, (form.section_end,)))
                found = end if end == form.call else (yield from reader.content(self._open))
                continue
            if outcome is CallOutcome.NOTHING:
                yield from reader.give_up()
            else:
                yield from reader.end(*filter(None, (CODE_FENCE, form.call_end, form.section_end)))
            found = yield from reader.content(self._open)

    def _call(self, reader: OutputReader, marker: str) -> Steps[CallOutcome]:
        form = self._form
        if marker == form.section:
            yield from reader.space()
            if not (yield from reader.skip(form.call)):
                return CallOutcome.NOTHING
        word = yield from _word(reader, self._head_ends, *form.separators)
        yield from reader.space()
        if word is not None and not (yield from reader.comes("{")):  # it was another word before the name
            word = yield from _word(reader, self._name_ends, *form.separators, "\n", "{")
            yield from reader.space()
            yield from reader.skip(f"{CODE_FENCE}json")
            yield from reader.space()
        name = form.named.fullmatch(word) if word else None
        return CallOutcome.NOTHING if name is None else (yield from arguments_value(reader, name[1]))


def _word(reader: OutputReader, ends: Markers, *good: str) -> Steps[str | None]:
    """Returns a word that one of `good` ends, or None."""
    words: list[str] = []
    end = yield from into_list(reader.until(ends), words)
    if end and (end not in good or end in "\n{"):
        reader.unread(end)
    word = "".join(words).strip()
    return word if end in good and len(word.split()) == 1 else None


def _grammar(form: NamedCalls, use: ToolUse, token_id: TokenId) -> str:
    def marked(words: str) -> str:
        return mark(words, token_id)

    end = f" {marked(form.call_end)}" if form.call_end else ""
    calls = f"({either(form.rule(tool, marked) for tool in use.tools)}){end}\n"
    if not form.section:
        return LARK_HEAD + start(use, form.call, token_id) + f"body: {calls}"
    more = f" ({form.between} call)*" if use.parallel else ""
    return (
        LARK_HEAD
        + start(use, form.section, token_id, again=False)
        + f"body: call{more} {marked(form.section_end)}\ncall: {marked(form.call)} {calls}"
    )


# formats --------------------------------------------------------------------------------------------------------------

# <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f
# ```json
# {"a": 1}
# ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
# This is V3 and R1. V3.1 writes f<｜tool▁sep｜>{"a": 1} between the inner markers. Both are read, whichever of them the
# chat template has; answers are constrained to the template's.
_DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"


def _fenced(tool: Tool, mark: MarkerRule) -> str:
    named, end = literal(f"{tool.name}\n{CODE_FENCE}json\n"), literal(f"\n{CODE_FENCE}")
    return f"{literal('function')} {mark(_DEEPSEEK_SEPARATOR)} {named} {arguments(tool)} {end}"


_DEEPSEEK_CALLS = NamedCalls(
    section="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
    call="<｜tool▁call▁begin｜>",
    separators=(_DEEPSEEK_SEPARATOR,),
    call_end="<｜tool▁call▁end｜>",
    rule=lambda tool, mark: f"{literal(tool.name)} {mark(_DEEPSEEK_SEPARATOR)} {arguments(tool)}",
)
DEEPSEEK_V3 = named_format("deepseek_v3", _DEEPSEEK_CALLS._replace(rule=_fenced, between="SPACE?"), f"{CODE_FENCE}json")
DEEPSEEK_V31 = named_format("deepseek_v31", _DEEPSEEK_CALLS)

# <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>…:
# names are ids that count the calls.
_KIMI_SEPARATOR = "<|tool_call_argument_begin|>"
KIMI_K2 = named_format(
    "kimi_k2",
    NamedCalls(
        section="<|tool_calls_section_begin|>",
        section_end="<|tool_calls_section_end|>",
        call="<|tool_call_begin|>",
        separators=(_KIMI_SEPARATOR,),
        call_end="<|tool_call_end|>",
        rule=lambda tool, mark: (
            f"{literal(f'functions.{tool.name}:')} /[0-9]{{1,3}}/ {mark(_KIMI_SEPARATOR)} {arguments(tool)}"
        ),
        named=re.compile(r"(?:functions\.)?(\S+?)(?::\d+)?"),
    ),
)

# <|tool_calls|><|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{"a": 1}<|tool_call:end|><|calls|>
_SOLAR_NAME, _SOLAR_ARGUMENTS = "<|tool_call:name|>", "<|tool_call:args|>"
SOLAR_OPEN = named_format(
    "solar_open",
    NamedCalls(
        section="<|tool_calls|>",
        section_end="<|calls|>",
        call="<|tool_call:begin|>",
        separators=(_SOLAR_NAME, _SOLAR_ARGUMENTS),
        call_end="<|tool_call:end|>",
        rule=lambda tool, mark: (
            f"/[A-Za-z0-9_-]{{1,40}}/ {mark(_SOLAR_NAME)} {literal(tool.name)} {mark(_SOLAR_ARGUMENTS)} "
            f"{arguments(tool)}"
        ),
    ),
)

# <function=f>{"a": 1}</function>
FUNCTIONARY_V31 = named_format(
    "functionary_v31",
    NamedCalls(
        section="",
        section_end="",
        call="<function=",
        separators=(">",),
        call_end="</function>",
        rule=lambda tool, mark: f"{literal(f'{tool.name}>')} {arguments(tool)}",
        tokens=False,
    ),
)
