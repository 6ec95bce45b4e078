"""Defines the answers of Anthropic's Messages API, and the events that a stream of one consists of."""

from collections.abc import Callable
from typing import Any, Literal, get_args

from msgspec import Struct

from gateway.shaping.tagged_events import event_encoder

THOUGHT_SIGNATURE = "unsigned"
"""The signature of thoughts. Clients want one, and it is never looked at: thoughts that come back are taken as text."""

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class TextAnswer(Struct, kw_only=True, tag_field="type", tag="text"):
    """Holds text of the answer."""

    text: str


class ThinkingAnswer(Struct, kw_only=True, tag_field="type", tag="thinking"):
    """Holds what the model has thought."""

    thinking: str
    signature: str


class ToolUseAnswer(Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """Holds a call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextAnswer | ThinkingAnswer | ToolUseAnswer


class MessageUsage(Struct, frozen=True, kw_only=True):
    """Counts tokens. Those of the prompt are `input_tokens` and the cache's together."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class MessageAnswer(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """Holds a whole answer."""

    id: str
    model: str
    content: list[AnswerBlock]
    usage: MessageUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: None = None
    role: Literal["assistant"] = "assistant"


class TokenCount(Struct, frozen=True):
    """Says how many tokens a prompt has."""

    input_tokens: int


class BlockTextDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="text_delta"):
    """Goes on with a block of text."""

    text: str


class ThinkingDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking_delta"):
    """Goes on with a block of thoughts."""

    thinking: str


class SignatureDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="signature_delta"):
    """Ends a block of thoughts."""

    signature: str


class InputDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_json_delta"):
    """Goes on with the input of a call."""

    partial_json: str


BlockDelta = BlockTextDelta | ThinkingDelta | SignatureDelta | InputDelta


class MessageStart(Struct, frozen=True, kw_only=True, tag_field="type", tag="message_start"):
    """Begins a stream, with an answer that has no content yet."""

    message: MessageAnswer


class BlockStart(Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_start"):
    """Begins a block, which is empty yet."""

    index: int
    content_block: AnswerBlock


class ContentBlockDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_delta"):
    """Adds to a block."""

    index: int
    delta: BlockDelta


class BlockStop(Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_stop"):
    """Ends a block."""

    index: int


class Stopped(Struct, frozen=True, kw_only=True):
    """Says why an answer has ended, and with which stop sequence, if with one."""

    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None


class MessageDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="message_delta"):
    """Says why the answer has ended, and counts its tokens."""

    delta: Stopped
    usage: MessageUsage


class MessageStop(Struct, frozen=True, kw_only=True, tag_field="type", tag="message_stop"):
    """Ends a stream."""


class PingEvent(Struct, frozen=True, kw_only=True, tag_field="type", tag="ping"):
    """Shows that the stream is alive."""


Event = MessageStart | BlockStart | ContentBlockDelta | BlockStop | MessageDelta | MessageStop | PingEvent


encoded: Callable[[Event], bytes] = event_encoder(get_args(Event))
