"""Joins successive messages of one turn. Other APIs split a turn into several items; chat templates expect one."""

from collections.abc import Sequence

from msgspec import structs

from gateway.openai.bodies.messages import Message, TextPart


def joined(messages: Sequence[Message]) -> Message:
    """Returns one message with the content of all of these, of which there is at least one, in linear time."""
    if len(messages) == 1:
        return messages[0]
    contents = [one.content for one in messages if one.content is not None]
    thoughts = [one.reasoning_content for one in messages if one.reasoning_content]
    return structs.replace(
        messages[0],
        content=contents[0] if len(contents) == 1 else [part for one in contents for part in _parts(one)] or None,
        tool_calls=[call for one in messages for call in one.tool_calls or ()] or None,
        reasoning_content="\n".join(thoughts) or None,
    )


def _parts(content: str | list[TextPart]) -> list[TextPart]:
    return [TextPart(type="text", text=content)] if isinstance(content, str) else content
