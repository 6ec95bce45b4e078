"""Defines tools as clients describe them, the choice among them, and their calls in earlier messages."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

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


class ChatTool(Struct, frozen=True, kw_only=True):
    """A tool, which is always a function."""

    type: Literal["function"]
    function: Function


class FunctionName(Struct, frozen=True):
    name: ToolName


class NamedTool(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """Chooses one tool by its name."""

    function: FunctionName


class AllowedTools(Struct, frozen=True, kw_only=True):
    """Tools that the answer may call (`auto`) or must call (`required`); the prompt has all tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"):
    """Chooses among some of the tools."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedChoice
FunctionChoice = Literal["none", "auto"] | FunctionName


class CalledFunction(Struct, frozen=True):
    """A function that the model has called in an earlier message, with arguments in JSON as it wrote them."""

    name: Annotated[str, Meta(max_length=256)]
    arguments: Annotated[str, Meta(max_length=MAX_ARGUMENT_CHARS)] | dict[str, Any] = ""


class ToolCall(Struct, frozen=True, kw_only=True):
    function: CalledFunction
    id: Annotated[str, Meta(max_length=256)] | None = None
    type: Literal["function"] = "function"
