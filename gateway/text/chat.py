"""Holds a chat as a template takes it, and finds every text in it that a client wrote."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

ROLE_FIELD = "role"  # the field of a message that is one of a few words, not a client's text
STRUCTURE_NAMES = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "id", "type", "function", "arguments"}
)
STRUCTURE_NAMES |= {
    "reasoning",
    "reasoning_content",
    "description",
    "parameters",
    "properties",
    "required",
    "items",
    "enum",
}
"""Names of fields that stay as they are, because templates ask for them; all other names are a client's."""


class Chat(Struct, frozen=True):
    """Holds the messages of a chat, the tools that it may use, and what else its template is told; all plain data.

    The prompt ends where the assistant's answer begins, or, without `answer`, behind the last message.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    options: Mapping[str, Any] = {}
    answer: bool = True

    def texts(self) -> Iterator[str]:
        """Yields every text that a client wrote, names of fields among them."""
        for message in self.messages:
            yield from _texts({name: value for name, value in message.items() if name != ROLE_FIELD})
        yield from _texts(self.tools)
        yield from _texts(list(self.options.values()))

    def changed(self, change: Callable[[str], str]) -> "Chat":
        """Returns the chat with each of these texts changed."""
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
