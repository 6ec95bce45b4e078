"""Shapes an answer as Anthropic's Messages API does: a stream of events, and the whole message."""

from collections.abc import Sequence
from typing import Any

import msgspec

from contracts.messages.sampling import Finish
from gateway.anthropic.events import (
    THOUGHT_SIGNATURE,
    AnswerBlock,
    BlockDelta,
    BlockStart,
    BlockStop,
    BlockTextDelta,
    ContentBlockDelta,
    Event,
    InputDelta,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    SignatureDelta,
    Stopped,
    StopReason,
    TextAnswer,
    ThinkingAnswer,
    ThinkingDelta,
    ToolUseAnswer,
)
from gateway.output.parts import CallArguments, CallBegins, Content, Reasoning
from gateway.shaping.items import ItemShape


class MessageShape(ItemShape[AnswerBlock, Event]):
    """Content blocks and events of one answer. The whole answer has exactly the blocks that its events describe."""

    def __init__(self, request: str, model: str, hides_thoughts: bool = False, ends_with_context: bool = False) -> None:
        """`request` is the request's id. With `hides_thoughts`, blocks of thoughts have no text.

        With `ends_with_context`, an answer is cut by the model's context and not by the client's limit.
        """
        super().__init__()
        self._request = request
        self._model = model
        self._hides_thoughts = hides_thoughts
        self._limit: StopReason = "model_context_window_exceeded" if ends_with_context else "max_tokens"

    def begin(self, usage: MessageUsage) -> Sequence[Event]:
        return [MessageStart(message=self._message([], usage))]

    def end(self, finish: Finish, stop: str | None, usage: MessageUsage) -> Sequence[Event]:
        """Returns the last events. `stop` is the stop sequence that has ended the answer, or None."""
        stopped = self._stopped(finish, stop)
        return [*self._close(), MessageDelta(delta=stopped, usage=usage), MessageStop()]

    def whole(self, finish: Finish, stop: str | None, usage: MessageUsage) -> MessageAnswer:
        self._close()
        stopped = self._stopped(finish, stop)
        message = self._message(self._items, usage)
        return msgspec.structs.replace(message, stop_reason=stopped.stop_reason, stop_sequence=stopped.stop_sequence)

    def _item(self, part: Content | Reasoning | CallBegins) -> AnswerBlock:
        match part:
            case Content():
                return TextAnswer(text="")
            case Reasoning():
                return ThinkingAnswer(thinking="", signature="")
            case CallBegins(call, name):
                return ToolUseAnswer(id=f"toolu_{self._request}_{call}", name=name, input={})

    def _opened(self, item: AnswerBlock) -> Sequence[Event]:
        return [BlockStart(index=len(self._items) - 1, content_block=msgspec.structs.replace(item))]

    def _extended(self, part: Content | Reasoning | CallArguments) -> Sequence[Event]:
        match part:
            case Content(text):
                return [self._delta(BlockTextDelta(text=text))]
            case Reasoning(text):
                return [] if self._hides_thoughts else [self._delta(ThinkingDelta(thinking=text))]
            case CallArguments(_, text):
                return [self._delta(InputDelta(partial_json=text))]

    def _closed(self, item: AnswerBlock, text: str, cut: bool) -> Sequence[Event]:
        stop = BlockStop(index=len(self._items) - 1)
        match item:
            case TextAnswer():
                item.text = text
            case ThinkingAnswer():
                item.thinking, item.signature = "" if self._hides_thoughts else text, THOUGHT_SIGNATURE
                return [self._delta(SignatureDelta(signature=THOUGHT_SIGNATURE)), stop]
            case ToolUseAnswer():
                item.input = _input(text)
        return [stop]

    def _delta(self, delta: BlockDelta) -> Event:
        return ContentBlockDelta(index=len(self._items) - 1, delta=delta)

    def _message(self, blocks: list[AnswerBlock], usage: MessageUsage) -> MessageAnswer:
        return MessageAnswer(id=f"msg_{self._request}", model=self._model, content=blocks, usage=usage)

    def _stopped(self, finish: Finish, stop: str | None) -> Stopped:
        reason: StopReason = "end_turn"
        if finish == "length":
            reason = self._limit
        elif stop is not None:
            reason = "stop_sequence"
        elif any(isinstance(block, ToolUseAnswer) for block in self._items):
            reason = "tool_use"
        return Stopped(stop_reason=reason, stop_sequence=stop)


def _input(text: str) -> dict[str, Any]:
    """Returns a call's arguments as an object. Text that is no JSON object, as it was cut off, becomes a field of one.

    Anthropic's documentation has clients send broken arguments back in this form.
    """
    try:
        found = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"INVALID_JSON": text}
