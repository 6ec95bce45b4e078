"""Defines the messages of a chat, and what chat templates see of them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gateway.openai.bodies.nesting import is_too_deep
from gateway.openai.bodies.tools import MAX_TOOLS, CalledFunction, ToolCall

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
ASSUMED_ARGUMENT_CHARS = 1024  # assumed size of arguments that are an object
MAX_MESSAGES = 2048  # of one chat
TEXT_PART_TYPES = ("text", "refusal")

CALL_SCHEMA: dict[str, Any] = {
    "oneOf": [
        {"required": [one], "properties": {one: {"type": "object"}, other: {"type": "null"}}}
        for one, other in (("function", "custom"), ("custom", "function"))
    ]
}
"""What `ToolCall` checks because types cannot express it."""


class TextPart(Struct, frozen=True, kw_only=True):
    """A text part of a message. Other types of parts are refused by name."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    def words(self) -> str:
        return (self.text if self.type == "text" else self.refusal) or ""


class Message(Struct, frozen=True, kw_only=True):
    """One message of a chat. Unknown fields have no effect, such as cache marks for other servers."""

    role: Role
    content: str | list[TextPart] | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    tool_calls: (
        Annotated[list[Annotated[ToolCall, Meta(extra_json_schema=CALL_SCHEMA)]], Meta(max_length=MAX_TOOLS)] | None
    ) = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None
    function_call: CalledFunction | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def text(self) -> str | None:
        """Returns the content as one text, with parts joined by line breaks; None without content."""
        if isinstance(self.content, list):
            return "\n".join(part.words() for part in self.content)
        return self.content if self.content is not None else self.refusal

    def size(self) -> int:
        """Estimates the number of characters for a template, without rendering anything."""
        texts = [part.words() for part in self.content] if isinstance(self.content, list) else [self.content or ""]
        texts += [self.reasoning_content or "", self.reasoning or ""]
        calls = [call.called.arguments for call in self.calls()]
        return (
            256
            + sum(map(len, texts))
            + sum(len(one) if isinstance(one, str) else ASSUMED_ARGUMENT_CHARS for one in calls)
        )

    def calls(self) -> list[ToolCall]:
        return (
            [ToolCall(function=self.function_call)] if self.function_call is not None else list(self.tool_calls or ())
        )

    def for_template(self) -> dict[str, Any]:
        """Returns the message as chat templates take it. Roles that few templates know become common ones.

        The arguments of calls become objects if they are JSON objects.
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
"""The messages of a chat. The schema also has what `parsing.py` checks because types cannot express it."""


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.called.name, "arguments": _arguments(call.called.arguments)}
    named = {} if call.id is None else {"id": call.id}
    return {**named, "type": "function", "function": function}


def _arguments(written: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(written, dict):
        return written
    try:
        found = msgspec.json.decode(written or "{}")
    except (msgspec.DecodeError, RecursionError):
        return written
    return found if isinstance(found, dict) and not is_too_deep(found) else written
