"""Defines tools as clients describe them, the choice among them, and calls of them in earlier messages."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MAX_TOOLS = 128  # that a request may have
MAX_ARGUMENT_CHARS = 1 << 20  # characters of one call's arguments

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class Function(Struct, frozen=True, kw_only=True):
    """Describes a function that the model may call. Other fields than these are of no concern here."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; None: it takes none
    strict: bool | None = None

    def for_template(self) -> dict[str, Any]:
        """Returns it as chat templates take it, with its fields in the order of the models' training."""
        described = {} if self.description is None else {"description": self.description}
        return {"name": self.name, **described, "parameters": self.parameters or NO_PARAMETERS}


class ChatTool(Struct, frozen=True, kw_only=True):
    """Holds a tool, which is always a function."""

    type: Literal["function"]
    function: Function


class FunctionName(Struct, frozen=True):
    """Names a function."""

    name: ToolName


class NamedTool(Struct, frozen=True, kw_only=True):
    """Chooses one tool by its name."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool
FunctionChoice = Literal["none", "auto"] | FunctionName


class CalledFunction(Struct, frozen=True):
    """Says which function the model has called in an earlier message, and with what: JSON, as it was written."""

    name: Annotated[str, Meta(max_length=256)]
    arguments: Annotated[str, Meta(max_length=MAX_ARGUMENT_CHARS)] | dict[str, Any] = ""


class ToolCall(Struct, frozen=True, kw_only=True):
    """Holds one call of an earlier message."""

    function: CalledFunction
    id: Annotated[str, Meta(max_length=256)] | None = None
    type: Literal["function"] = "function"
