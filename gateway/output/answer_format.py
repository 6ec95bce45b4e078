"""Decides how a model's answers are read and constrained, from its formats of tool calls and of thinking."""

from collections.abc import Collection

from contracts.kinds import ReasoningParser, ToolParser
from gateway.grammar.texts import nested
from gateway.output.formats.known_formats import THINKING_FORMATS, TOOL_FORMATS
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.lark import TokenId, mark
from gateway.output.parts import OutputParser
from gateway.output.reader import OutputReader, ReadingParser, Steps
from gateway.output.recognition import recognised
from gateway.output.thinking import Thinking
from gateway.output.tools import ToolUse
from gateway.text.shown_tools import ShownTools


class AnswerFormat:
    """Format of a model's answers. `prompt` is always the rendered prompt, or its last few words.

    Without `tool_format`, tools cannot be called, and requests with tools are refused. `takes_tools`: prompts name the
    tools.
    """

    def __init__(
        self, family: ToolFormat | None, thinking: Thinking | None, token_id: TokenId, takes_tools: bool
    ) -> None:
        self.takes_tools = takes_tools
        self.tool_format = family
        self.thinking = thinking
        self._token_id = token_id

    def markers(self, use: ToolUse | None) -> Collection[str]:
        """Returns the special tokens that the parser must see as text. Other special tokens have no text."""
        called = self.tool_format.markers if self.tool_format is not None and use is not None else ()
        return {*called, *(self.thinking.markers if self.thinking is not None else ())}

    def parser(self, prompt: str, use: ToolUse | None) -> OutputParser:
        """Returns the parser of one sample's text. Without `use`, the text has no calls."""
        reader = OutputReader(only_calls=use is not None and use.must)
        return ReadingParser(reader, self._read(reader, prompt, use))

    def grammar(self, prompt: str, use: ToolUse | None, form: str = "") -> str:
        """Returns the grammar of an answer that may or must call tools, or has a form; "" for any answer.

        With a form and optional tools, the answer is either the form or a call. Thinking stays free.
        """
        if self.tool_format is None or use is None:
            return self.after_thinking(prompt, form) if form else ""
        either = form and not use.must
        calls = self.tool_format.grammar(use._replace(must=True) if either else use, self._token_id)
        if self.tool_format.thinks:
            return self._either(self.after_thinking(prompt, form), calls) if either else calls
        return self.after_thinking(prompt, self._either(form, calls) if either else calls)

    def after_thinking(self, prompt: str, grammar: str) -> str:
        return grammar if self.thinking is None else self.thinking.before(grammar, prompt, self._token_id)

    def _either(self, form: str, calls: str) -> str:
        marker = (
            mark(self.tool_format.beside, self._token_id)
            if self.tool_format is not None and self.tool_format.beside
            else ""
        )
        return f"%llguidance {{}}\nstart: {nested(form)} | {marker} {nested(calls)}\n"

    def _read(self, reader: OutputReader, prompt: str, use: ToolUse | None) -> Steps[None]:
        family = self.tool_format if use is not None else None
        if self.thinking is not None and not (family is not None and family.thinks):
            yield from self.thinking.read(reader, prompt)
        if family is not None and use is not None:
            yield from family.read(reader, use, prompt)
        else:
            yield from reader.rest()


def answer_format(
    shown_tools: ShownTools, token_id: TokenId, tools: ToolParser = "auto", reasoning: ReasoningParser = "auto"
) -> AnswerFormat:
    """Returns the format of a model with this template. `tools` and `reasoning` are names of formats, auto or none."""
    family = next((family for family in TOOL_FORMATS if family.name == tools), None)
    if tools == "auto":
        family = recognised(TOOL_FORMATS, shown_tools, token_id)
    thinking = next((thinking for thinking in THINKING_FORMATS if thinking.name == reasoning), None)
    if reasoning == "auto":
        thinking = next((thinking for thinking in THINKING_FORMATS if thinking.recognises(shown_tools.source)), None)
    return AnswerFormat(family, thinking, token_id, shown_tools.takes)
