"""Defines tools as clients describe them, the choice among them, and their calls in earlier messages."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from checkpoints.grammars import GrammarError
from gateway.grammar.forms import MAX_REGEX_CHARS
from gateway.grammar.lark_regex import regex_of_lark
from gateway.output.custom_calls import INPUT_FIELD

MAX_REFUSAL_CHARS = 200  # an error may repeat a part of the grammar
MAX_TOOLS = 128  # of a request
MAX_ARGUMENT_CHARS = 1 << 20  # of one call

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class Function(Struct, frozen=True, kw_only=True):
    """A function that the model may call. Unknown fields have no effect."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; None: no parameters
    strict: bool | None = None

    def for_template(self) -> dict[str, Any]:
        described = {} if self.description is None else {"description": self.description}
        return {"name": self.name, **described, "parameters": self.parameters or NO_PARAMETERS}


class RuledFunction(Function, frozen=True, kw_only=True):
    """A custom tool as the model sees it: a grammar in the client's words stands for the regex that is made of it."""

    def for_template(self) -> dict[str, Any]:
        shown = super().for_template()
        text = shown["parameters"]["properties"][INPUT_FIELD]
        told = {key: value for key, value in text.items() if key != "pattern" or "description" not in text}
        return shown | {"parameters": {**shown["parameters"], "properties": {INPUT_FIELD: told}}}


class ChatTool(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A function."""

    function: Function


class AnyText(Struct, frozen=True, tag_field="type", tag="text"):
    """The input of a custom tool is any text."""


class InputRule(Struct, frozen=True, kw_only=True):
    """A regex in Rust's syntax, which matches the whole text, or a Lark grammar without recursion."""

    syntax: Literal["regex", "lark"]
    definition: Annotated[str, Meta(min_length=1, max_length=MAX_REGEX_CHARS)]

    def __post_init__(self) -> None:
        try:
            self.regex()
        except GrammarError as error:
            raise ValueError(str(error)[:MAX_REFUSAL_CHARS]) from error

    def regex(self) -> str:
        return regex_of_lark(self.definition) if self.syntax == "lark" else self.definition


class RuledText(Struct, frozen=True, kw_only=True, tag_field="type", tag="grammar"):
    """The input of a custom tool follows a rule."""

    grammar: InputRule


class CustomDescription(Struct, frozen=True, kw_only=True):
    """A tool whose input is a text."""

    name: ToolName
    description: str | None = None
    format: AnyText | RuledText | None = None


class CustomTool(Struct, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    """A custom tool, which the model sees as a function with one text."""

    custom: CustomDescription

    @property
    def function(self) -> Function:
        text: dict[str, Any] = {"type": "string"}
        rule = self.custom.format.grammar if isinstance(self.custom.format, RuledText) else None
        if rule is not None:
            text["pattern"] = f"^(?:{rule.regex()})$"
        if rule is not None and rule.syntax == "lark":
            text["description"] = f"A text that this Lark grammar derives:\n{rule.definition}"
        parameters = {"type": "object", "properties": {INPUT_FIELD: text}, "required": [INPUT_FIELD]}
        return RuledFunction(
            name=self.custom.name, description=self.custom.description, parameters=parameters, strict=rule is not None
        )


class FunctionName(Struct, frozen=True):
    name: ToolName


class NamedTool(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """Chooses one tool by its name."""

    function: FunctionName


class NamedCustom(Struct, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    """Chooses one custom tool by its name."""

    custom: FunctionName

    @property
    def function(self) -> FunctionName:
        return self.custom


class AllowedTools(Struct, frozen=True, kw_only=True):
    """Tools that the answer may call (`auto`) or must call (`required`); the prompt has all tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool | NamedCustom], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"):
    """Chooses among some of the tools."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | NamedCustom | AllowedChoice
FunctionChoice = Literal["none", "auto"] | FunctionName


class CalledFunction(Struct, frozen=True):
    """A function that the model has called in an earlier message, with arguments in JSON as it wrote them."""

    name: Annotated[str, Meta(max_length=256)]
    arguments: Annotated[str, Meta(max_length=MAX_ARGUMENT_CHARS)] | dict[str, Any] = ""


class CalledCustom(Struct, frozen=True, kw_only=True):
    """A custom tool that the model has called in an earlier message."""

    name: Annotated[str, Meta(max_length=256)]
    input: Annotated[str, Meta(max_length=MAX_ARGUMENT_CHARS)] = ""


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call in an earlier message, of a function or of a custom tool."""

    function: CalledFunction | None = None
    custom: CalledCustom | None = None
    id: Annotated[str, Meta(max_length=256)] | None = None
    type: Literal["function", "custom"] = "function"

    def __post_init__(self) -> None:
        """Raises `ValueError`, which msgspec reports with the place, if it calls nothing or both."""
        if (self.function is None) == (self.custom is None):
            raise ValueError("a call names either a function or a custom tool")

    @property
    def called(self) -> CalledFunction:
        """Returns the call as templates take it."""
        if self.function is not None:
            return self.function
        assert self.custom is not None, "checked above"
        return CalledFunction(self.custom.name, {INPUT_FIELD: self.custom.input})
