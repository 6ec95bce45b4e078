"""Reads and constrains answers in the harmony format of gpt-oss: messages, whose channels say what they are.

    <|channel|>analysis<|message|>The user asks for the weather.<|end|><|start|>assistant<|channel|>commentary
    to=functions.weather <|constrain|>json<|message|>{"place": "Oslo"}<|call|>

"analysis" is thought. "commentary" with a recipient is a call, and without one it is content, as "final" is. The
recipient may also stand before the channel. Thoughts and calls alternate, so this format reads both.
(https://github.com/openai/harmony, docs/format.md)
"""

import re

from gateway.grammar.texts import literal
from gateway.output.formats.call_object import NO_ARGUMENTS
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.lark import LARK_HEAD, TokenId, arguments, either, mark, up_to
from gateway.output.parts import Content, Reasoning
from gateway.output.reader import Markers, OutputReader, Steps, as_parts, into_list
from gateway.output.thinking import Thinking
from gateway.output.tools import Tool, ToolUse

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
HARMONY_MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
RECIPIENT, FUNCTIONS = "to=", "functions."
ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"
_OUTSIDE, _HEADER_ENDS, _BODY_ENDS = Markers(START, CHANNEL), Markers(MESSAGE, START), Markers(END, CALL, RETURN, START)
_RECIPIENT_REGEX = re.compile(rf"\b{RECIPIENT}([^\s<]+)")
_CHANNEL_REGEX = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


# reading --------------------------------------------------------------------------------------------------------------


def read(reader: OutputReader, use: ToolUse | None, prompt: str) -> Steps[None]:
    """Yields thoughts, content and calls. Without `use`, calls are content."""
    header, opened, _ = _begun(prompt).partition(MESSAGE)
    if not opened and (yield from reader.skip(f" {RECIPIENT}")):
        reader.attempt(f" {RECIPIENT}")
        header = yield from _header(reader, RECIPIENT)
    while True:
        if not opened and not header:
            found = yield from reader.content(_OUTSIDE)
            if not found:
                return
            reader.attempt(found)
            header = yield from _header(reader, found)
            continue
        reader.drop_space()
        end = yield from _body(reader, header, use)
        header, opened = "", ""
        if end == START:
            reader.unread(end)


def _begun(prompt: str) -> str:
    """Returns the header of the answer's first message that the prompt has begun, without the role's name."""
    begun = prompt.rpartition(START)[2] if START in prompt else ""
    return begun if MESSAGE in begun and not any(end in begun for end in (END, CALL, RETURN)) else ""


def _header(reader: OutputReader, begin: str) -> Steps[str]:
    """Returns a message's header, or "" if the text is no header: then it is content."""
    words = [begin]
    end = yield from into_list(reader.until(_HEADER_ENDS), words)
    if end == MESSAGE:
        return "".join(words)
    reader.unread(end)
    yield from reader.give_up()
    return ""


def _body(reader: OutputReader, header: str, use: ToolUse | None) -> Steps[str]:
    """Yields a message's text as the kind of part that its header names. Returns the marker after it."""
    channel, recipient = _CHANNEL_REGEX.search(header), _RECIPIENT_REGEX.search(header)
    if recipient is not None and use is not None:
        name = recipient[1].removeprefix(FUNCTIONS)
        if name and (name != recipient[1] or any(tool.name == name for tool in use.tools)):
            return (yield from _call(reader, name))
    thought = channel is not None and channel[1] == ANALYSIS
    return (yield from as_parts(reader.until(_BODY_ENDS), Reasoning if thought else Content))


def _call(reader: OutputReader, name: str) -> Steps[str]:
    yield reader.begin(name)
    first = yield from reader.skip(END, CALL, RETURN)
    if first:
        yield reader.arguments(NO_ARGUMENTS)
        return first
    return (yield from as_parts(reader.until(_BODY_ENDS), reader.arguments))


# constraining ---------------------------------------------------------------------------------------------------------


def grammar(use: ToolUse, token_id: TokenId) -> str:
    """Returns the grammar of an answer with its thoughts. At most one call, which ends the answer."""
    last = "call" if use.must else f"call | {_message(FINAL, token_id)} TEXT"
    calls = either(_called(tool, token_id) for tool in use.tools)
    return LARK_HEAD + _before("first", token_id, COMMENTARY) + f"start: first* ({last})\ncall: {calls}\n"


def _before(rule: str, token_id: TokenId, *channels: str) -> str:
    kinds = either(_message(channel, token_id) for channel in (ANALYSIS, *channels))
    return f'{rule}: ({kinds}) body {mark(START, token_id)} "assistant"\n' + up_to("body", END, token_id)


def _message(channel: str, token_id: TokenId) -> str:
    return f"{mark(CHANNEL, token_id)} {literal(channel)} {mark(MESSAGE, token_id)}"


def _called(tool: Tool, token_id: TokenId) -> str:
    channel, recipient = mark(CHANNEL, token_id), f"{RECIPIENT}{FUNCTIONS}{tool.name}"
    inside = f"{channel} {literal(f'{COMMENTARY} {recipient}')}"
    before = f"{literal(f' {recipient}')} {channel} {literal(COMMENTARY)}"
    json = f"(/ ?/ {mark(CONSTRAIN, token_id)}? {literal('json')})?"
    return f"(({inside}) | ({before})) {json} {mark(MESSAGE, token_id)} {arguments(tool)} {mark(CALL, token_id)}?"


class _Channels(Thinking):
    """Reads whole answers in channels, since thoughts and content can only be told apart together."""

    @property
    def markers(self) -> tuple[str, ...]:
        return HARMONY_MARKERS

    def recognises(self, template: str) -> bool:
        return CHANNEL in template

    def read(self, reader: OutputReader, prompt: str) -> Steps[None]:
        yield from read(reader, None, prompt)

    def before(self, grammar: str, prompt: str, token_id: TokenId) -> str:
        nested = f"answer: %lark {{\n{grammar}\n}}\n"
        begun = _begun(prompt)
        if ANALYSIS not in begun and begun:
            return grammar
        rest = f"first* {_message(FINAL, token_id)} answer"
        if begun:
            rest = f'body {mark(START, token_id)} "assistant" {rest}'
        return LARK_HEAD + f"start: {rest}\n" + _before("first", token_id, COMMENTARY) + nested


HARMONY_THINKING = _Channels("harmony", f"{CHANNEL}{ANALYSIS}{MESSAGE}", END)
HARMONY_FORMAT = ToolFormat(
    "harmony",
    markers=HARMONY_MARKERS,
    words=(CHANNEL,),
    read=read,
    grammar=grammar,
    thinks=True,
)
