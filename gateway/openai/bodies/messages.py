"""Defines the messages of a chat, and what of them chat templates see."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gateway.openai.bodies.nesting import is_too_deep
from gateway.openai.bodies.tools import MAX_TOOLS, CalledFunction, ToolCall

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
ASSUMED_ARGUMENT_CHARS = 1024  # characters that an object of arguments is taken for
MAX_MESSAGES = 2048  # that one chat may have
TEXT_PART_TYPES = ("text", "refusal")  # kinds of parts that are text


class TextPart(Struct, frozen=True, kw_only=True):
    """Holds a text part of a message. Other kinds of parts are refused by name."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    def words(self) -> str:
        """Returns its text, which is in the field that its type names."""
        return (self.text if self.type == "text" else self.refusal) or ""


class Message(Struct, frozen=True, kw_only=True):
    """Holds one message of a chat. Other fields than these change nothing, such as marks for another server's cache."""

    role: Role
    content: str | list[TextPart] | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None
    function_call: CalledFunction | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def text(self) -> str | None:
        """Returns its content as one text, parts joined by line breaks; None where it has none."""
        if isinstance(self.content, list):
            return "\n".join(part.words() for part in self.content)
        return self.content if self.content is not None else self.refusal

    def size(self) -> int:
        """Returns about how many characters it has for a template, without making anything of them."""
        texts = [part.words() for part in self.content] if isinstance(self.content, list) else [self.content or ""]
        texts += [self.reasoning_content or "", self.reasoning or ""]
        calls = [call.function.arguments for call in self.calls()]
        return (
            256
            + sum(map(len, texts))
            + sum(len(one) if isinstance(one, str) else ASSUMED_ARGUMENT_CHARS for one in calls)
        )

    def calls(self) -> list[ToolCall]:
        """Returns the calls in it, in whichever of both forms they are."""
        return (
            [ToolCall(function=self.function_call)] if self.function_call is not None else list(self.tool_calls or ())
        )

    def for_template(self) -> dict[str, Any]:
        """Returns it as chat templates take it: `developer` and `function` by the names that all templates know.

        The arguments of calls are objects there, wherever they are JSON objects.
        """
        role = {"developer": "system", "function": "tool"}.get(self.role, self.role)
        fields: dict[str, Any] = {"role": role, "content": self.text()}
        calls = self.calls()
        if fields["content"] is None and not calls:
            fields["content"] = ""
        if calls:
            fields["tool_calls"] = [_call(call) for call in calls]
        thought = self.reasoning_content if self.reasoning_content is not None else self.reasoning
        for name, value in (
            ("name", self.name),
            ("tool_call_id", self.tool_call_id),
            ("reasoning_content", thought),
            ("reasoning", thought),
        ):
            if value is not None:
                fields[name] = value
        return fields


CONTENT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"properties": {"role": {"enum": ["assistant"]}}},
        {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
    ]
}
Messages = Annotated[
    list[Annotated[Message, Meta(extra_json_schema=CONTENT_SCHEMA)]], Meta(min_length=1, max_length=MAX_MESSAGES)
]
"""The messages of a chat. What `bodies.py` checks of them, and types cannot say, is in the schema as well."""


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
    named = {} if call.id is None else {"id": call.id}
    return {**named, "type": call.type, "function": function}


def _arguments(written: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(written, dict):
        return written
    try:
        found = msgspec.json.decode(written or "{}")
    except (msgspec.DecodeError, RecursionError):
        return written
    return found if isinstance(found, dict) and not is_too_deep(found) else written
