"""Defines the answers of Anthropic's Messages API, and the events of a stream."""

from collections.abc import Callable
from typing import Any, Literal, get_args

from msgspec import Struct

from gateway.shaping.tagged_events import event_encoder

THOUGHT_SIGNATURE = "unsigned"
"""Clients require a signature of thoughts. It is never checked: thoughts that come back are taken as text."""

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class TextAnswer(Struct, kw_only=True, tag_field="type", tag="text"):
    text: str


class ThinkingAnswer(Struct, kw_only=True, tag_field="type", tag="thinking"):
    """Thoughts of the model."""

    thinking: str
    signature: str


class ToolUseAnswer(Struct, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextAnswer | ThinkingAnswer | ToolUseAnswer


class MessageUsage(Struct, frozen=True, kw_only=True):
    """Token counts. The prompt has `input_tokens` and the cached tokens together."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class MessageAnswer(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    model: str
    content: list[AnswerBlock]
    usage: MessageUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: None = None
    role: Literal["assistant"] = "assistant"


class TokenCount(Struct, frozen=True):
    """Number of tokens of a prompt."""

    input_tokens: int


class BlockTextDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="text_delta"):
    """More text of a text block."""

    text: str


class ThinkingDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking_delta"):
    """More text of a thinking block."""

    thinking: str


class SignatureDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="signature_delta"):
    """The last delta of a thinking block."""

    signature: str


class InputDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_json_delta"):
    """More of a call's input, as JSON."""

    partial_json: str


BlockDelta = BlockTextDelta | ThinkingDelta | SignatureDelta | InputDelta


class MessageStart(Struct, frozen=True, kw_only=True, tag_field="type", tag="message_start"):
    """First event of a stream; the answer has no content yet."""

    message: MessageAnswer


class BlockStart(Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_start"):
    """Begins an empty block."""

    index: int
    content_block: AnswerBlock


class ContentBlockDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_delta"):
    """Extends the open block."""

    index: int
    delta: BlockDelta


class BlockStop(Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_stop"):
    """Ends the open block."""

    index: int


class Stopped(Struct, frozen=True, kw_only=True):
    """Why an answer has ended; `stop_sequence` is the client's sequence that has ended it, or None."""

    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None


class MessageDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="message_delta"):
    """Why the answer has ended, and its token counts."""

    delta: Stopped
    usage: MessageUsage


class MessageStop(Struct, frozen=True, kw_only=True, tag_field="type", tag="message_stop"):
    """Last event of a stream."""


class PingEvent(Struct, frozen=True, kw_only=True, tag_field="type", tag="ping"):
    """Keeps a silent stream alive."""


Event = MessageStart | BlockStart | ContentBlockDelta | BlockStop | MessageDelta | MessageStop | PingEvent


encoded: Callable[[Event], bytes] = event_encoder(get_args(Event))
