"""Parses the bodies of Anthropic's Messages API. Errors name the content that a text model cannot take."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from gateway.anthropic.schemas import Block, CountTokensRequest, MessagesRequest
from gateway.errors import invalid
from gateway.openai.bodies.parsing import converted, json_object
from gateway.openai.bodies.unknown_fields import REFUSED, UnknownFields

BUILT_IN_TOOL_PREFIXES = (
    "bash_",
    "text_editor_",
    "computer_",
    "memory_",
    "browser_",
)  # of Anthropic's own tools, which clients run
BLOCK_TYPES = {kind.__struct_config__.tag for kind in get_args(Block)}


def parse_messages(body: bytes, unknown: UnknownFields = REFUSED) -> MessagesRequest:
    """Returns the body of a message. Raises `APIError` if anything is wrong with it."""
    return converted(_checked(json_object(body)), MessagesRequest, unknown)


def parse_count(body: bytes, unknown: UnknownFields = REFUSED) -> CountTokensRequest:
    """Returns the body of a token count. Raises `APIError` if anything is wrong with it."""
    return converted(_checked(json_object(body)), CountTokensRequest, unknown)


def _checked(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the fields unchanged. Raises `APIError` for threads and for unsupported types of blocks and tools.

    Anthropic's tool runner starts threads by default, and retries without one when it gets this error code.
    """
    if fields.get("thread") is not None:
        message = "thread: messages are not kept here; send the whole conversation"
        raise invalid(message, "thread", "thread_unsupported_request")
    for number, message in enumerate(_list(fields.get("messages"))):
        for where, block in _blocks(message, f"messages[{number}]"):
            kind = block.get("type")
            if isinstance(kind, str) and kind not in BLOCK_TYPES:
                name = f"{where}.type"
                raise invalid(f"{name}: blocks of the type {kind[:64]!r} are not supported, only text is", name)
    for number, tool in enumerate(_list(fields.get("tools"))):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "custom":
            name = f"tools[{number}].type"
            built_in = kind.startswith(BUILT_IN_TOOL_PREFIXES)
            why = "its schema is known to Claude alone" if built_in else "this server runs no tools"
            message = f"{name}: a tool of the type {kind[:64]!r} is not supported, for {why}"
            raise invalid(f"{message}; describe yours by its name and input_schema", name, "unsupported_parameter")
    return fields


def _blocks(message: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the blocks of a message, and the blocks inside tool results, each with its name."""
    for number, block in enumerate(_list(message.get("content")) if isinstance(message, dict) else ()):
        if isinstance(block, dict):
            name = f"{where}.content[{number}]"
            yield name, block
            yield from _blocks(block, name)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
