"""Reads calls in DeepSeek's formats, whose markers have full-width bars: that of V3 and R1, and that of V3.1.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
    ```json
    {"place": "Oslo"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Both are read, whichever of them the model's template has; the template says which one answers are held to.
"""

from collections.abc import Callable

from gateway.grammar.texts import literal
from gateway.output.formats.call_object import Found, arguments_value
from gateway.output.formats.family import Family
from gateway.output.lark import HEAD, TokenId, arguments, either, mark, start
from gateway.output.reader import Marks, Reader, Steps, kept, told
from gateway.output.tools import Tool, ToolUse

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "```json"
MARKERS = (CALLS, CALLS_END, CALL, SEPARATOR, CALL_END)
_OPEN, _CALL_ENDS = Marks(CALLS, CALL), Marks(CALL_END, CALLS_END, CALL)
_HEAD_ENDS, _NAME_ENDS = Marks(SEPARATOR, CALL_END, CALLS_END, CALL), Marks("\n", "{", CALL_END, CALLS_END, CALL)


def read(reader: Reader, use: ToolUse, prompt: str) -> Steps[None]:
    """Yields content and calls."""
    found = yield from reader.content(_OPEN)
    while found:
        reader.attempt(found)
        outcome = yield from _call(reader, found)
        if outcome is Found.BROKEN:
            end = yield from told(reader.until(_CALL_ENDS), reader.arguments)
            if end == CALL_END:
                yield from reader.end(CALLS_END)
            found = CALL if end == CALL else (yield from reader.content(_OPEN))
            continue
        if outcome is Found.NOTHING:
            yield from reader.give_up()
        else:
            yield from reader.end("```", CALL_END, CALLS_END)
        found = yield from reader.content(_OPEN)


def _call(reader: Reader, found: str) -> Steps[Found]:
    """Reads one call up to its arguments' end."""
    if found == CALLS:
        yield from reader.space()
        if not (yield from reader.skip(CALL)):
            return Found.NOTHING
    name = yield from _word(reader, _HEAD_ENDS, SEPARATOR)
    yield from reader.space()
    if name is not None and not (yield from reader.comes("{")):  # V3: that was the kind of the tool
        name = yield from _word(reader, _NAME_ENDS, "\n", "{")
        yield from reader.space()
        yield from reader.skip(FENCE)
        yield from reader.space()
    return Found.NOTHING if name is None else (yield from arguments_value(reader, name))


def _word(reader: Reader, ends: Marks, *good: str) -> Steps[str | None]:
    """Returns a word that ends with one of `good`, or None."""
    words: list[str] = []
    end = yield from kept(reader.until(ends), words)
    if end and end != SEPARATOR:
        reader.unread(end)
    word = "".join(words).strip()
    return word if end in good and len(word.split()) == 1 else None


def grammar(use: ToolUse, token_id: TokenId) -> str:
    """Returns the grammar of an answer in V3's format."""
    return _grammar(use, token_id, "SPACE?", _fenced)


def grammar_v31(use: ToolUse, token_id: TokenId) -> str:
    """Returns the grammar of an answer in V3.1's format."""
    return _grammar(use, token_id, "", _bare)


def _grammar(use: ToolUse, token_id: TokenId, between: str, call: Callable[[Tool, str], str]) -> str:
    calls = either(call(tool, mark(SEPARATOR, token_id)) for tool in use.tools)
    more = f" ({between} call)*" if use.parallel else ""
    return (
        HEAD
        + start(use, CALLS, token_id, again=False)
        + f"body: call{more} {mark(CALLS_END, token_id)}\n"
        + f"call: {mark(CALL, token_id)} ({calls}) {mark(CALL_END, token_id)}\n"
    )


def _fenced(tool: Tool, separator: str) -> str:
    named, end = literal(f"{tool.name}\n{FENCE}\n"), literal("\n```")
    return f"{literal('function')} {separator} {named} {arguments(tool)} {end}"


def _bare(tool: Tool, separator: str) -> str:
    return f"{literal(tool.name)} {separator} {arguments(tool)}"


DEEPSEEK_V3 = Family("deepseek_v3", MARKERS, lambda template: CALLS in template and FENCE in template, read, grammar)
DEEPSEEK_V31 = Family("deepseek_v31", MARKERS, lambda template: CALLS in template, read, grammar_v31)
