"""Defines a chat as templates take it, and finds every text in it that the client wrote."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

ROLE_FIELD = "role"  # its value is one of a few words, not a client's text
STRUCTURE_NAMES = frozenset(
    [
        "role",
        "content",
        "name",
        "tool_calls",
        "tool_call_id",
        "id",
        "type",
        "function",
        "arguments",
        "reasoning",
        "reasoning_content",
        "description",
        "parameters",
        "properties",
        "required",
        "items",
        "enum",
    ]
)
"""Field names that templates ask for, and that therefore stay unchanged. All other names are the client's text."""


class Chat(Struct, frozen=True):
    """Messages, tools and template options, all as plain data.

    The prompt ends with the beginning of the assistant's answer, or, without `answer`, after the last message. With
    `continues` it ends inside the last message, which the answer continues.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    options: Mapping[str, Any] = {}
    answer: bool = True
    continues: bool = False

    def texts(self) -> Iterator[str]:
        """Yields every text that the client wrote, including field names."""
        for message in self.messages:
            yield from _texts({name: value for name, value in message.items() if name != ROLE_FIELD})
        yield from _texts(self.tools)
        yield from _texts(list(self.options.values()))

    def changed(self, change: Callable[[str], str]) -> "Chat":
        """Returns the chat with `change` applied to each of these texts."""
        messages = [
            {name: value if name == ROLE_FIELD else _changed(value, change) for name, value in message.items()}
            for message in self.messages
        ]
        options = {name: _changed(value, change) for name, value in self.options.items()}
        return structs.replace(self, messages=messages, tools=_changed(self.tools, change), options=options)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            if name not in STRUCTURE_NAMES:
                yield name
            yield from _texts(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name if name in STRUCTURE_NAMES else change(name): _changed(one, change) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_changed(one, change) for one in value]
    return value
