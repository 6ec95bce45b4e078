"""Shapes an answer as Anthropic's Messages API does: its events from parts, and the whole from the same."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from contracts.messages.sampling import Finish
from gateway.anthropic.events import (
    UNSIGNED,
    AnswerBlock,
    BlockDelta,
    BlockGoesOn,
    BlockStart,
    BlockStop,
    Event,
    InputDelta,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    SignatureDelta,
    Stopped,
    StopReason,
    TextAnswer,
    TextDelta,
    ThinkingAnswer,
    ThinkingDelta,
    ToolUseAnswer,
    Usage,
)
from gateway.output.parts import CallArguments, CallBegins, Content, Part, Reasoning


class MessageShape:
    """Makes the blocks of one answer out of its parts, one after the other.

    `whole` is what the events add up to, because it is put together from the same blocks.
    """

    def __init__(self, request: str, model: str, hides_thoughts: bool = False, ends_with_context: bool = False) -> None:
        """`request` is the request's id; with `hides_thoughts`, blocks of thoughts have no text.

        With `ends_with_context`, it is the context that cuts an answer off, and not the client's limit.
        """
        self._request = request
        self._model = model
        self._hides_thoughts = hides_thoughts
        self._limit: StopReason = "model_context_window_exceeded" if ends_with_context else "max_tokens"
        self._blocks: list[AnswerBlock] = []
        self._pieces: list[str] = []  # of the last block: its text, thoughts or input
        self._open = False  # whether the last block goes on

    def begin(self, usage: Usage) -> Sequence[Event]:
        """Returns the event before everything else."""
        return [MessageStart(message=self._message([], usage))]

    def take(self, parts: Iterable[Part]) -> Sequence[Event]:
        """Returns the events of these parts, often none."""
        return [event for part in parts for event in self._taken(part)]

    def end(self, finish: Finish, stop: str | None, usage: Usage) -> Sequence[Event]:
        """Returns the last events; `stop` is the stop sequence that has ended the answer, if one has."""
        stopped = self._stopped(finish, stop)
        return [*self._closed(), MessageDelta(delta=stopped, usage=usage), MessageStop()]

    def whole(self, finish: Finish, stop: str | None, usage: Usage) -> MessageAnswer:
        """Returns the whole answer, when all of its parts were taken."""
        list(self._closed())
        stopped = self._stopped(finish, stop)
        message = self._message(self._blocks, usage)
        return msgspec.structs.replace(message, stop_reason=stopped.stop_reason, stop_sequence=stopped.stop_sequence)

    def _taken(self, part: Part) -> Iterator[Event]:
        match part:
            case Content(text):
                yield from self._text(text, TextAnswer, TextAnswer(text=""), TextDelta(text=text))
            case Reasoning(text):
                empty = ThinkingAnswer(thinking="", signature="")
                text = "" if self._hides_thoughts else text
                yield from self._text(text, ThinkingAnswer, empty, ThinkingDelta(thinking=text))
            case CallBegins(number, name):
                yield from self._begun(ToolUseAnswer(id=f"toolu_{self._request}_{number}", name=name, input={}))
            case CallArguments(_, text):
                assert self._open and isinstance(self._blocks[-1], ToolUseAnswer), "arguments follow their call"
                if text:
                    yield self._more(text, InputDelta(partial_json=text))

    def _text(self, text: str, kind: type[AnswerBlock], empty: AnswerBlock, delta: BlockDelta) -> Iterator[Event]:
        if not (self._open and isinstance(self._blocks[-1], kind)):
            if not text and kind is TextAnswer:
                return
            yield from self._begun(empty)
        if text:
            yield self._more(text, delta)

    def _begun(self, block: AnswerBlock) -> Iterator[Event]:
        yield from self._closed()
        self._blocks.append(block)
        self._open = True
        yield BlockStart(index=len(self._blocks) - 1, content_block=msgspec.structs.replace(block))

    def _more(self, text: str, delta: BlockDelta) -> Event:
        self._pieces.append(text)
        return BlockGoesOn(index=len(self._blocks) - 1, delta=delta)

    def _closed(self) -> Iterator[Event]:
        """Ends the block that is open, if one is, and keeps what it has become."""
        if not self._open:
            return
        index, text = len(self._blocks) - 1, "".join(self._pieces)
        match self._blocks[-1]:
            case TextAnswer() as block:
                block.text = text
            case ThinkingAnswer() as block:
                block.thinking, block.signature = text, UNSIGNED
                yield BlockGoesOn(index=index, delta=SignatureDelta(signature=UNSIGNED))
            case ToolUseAnswer() as block:
                block.input = _input(text)
        self._pieces, self._open = [], False
        yield BlockStop(index=index)

    def _message(self, blocks: list[AnswerBlock], usage: Usage) -> MessageAnswer:
        return MessageAnswer(id=f"msg_{self._request}", model=self._model, content=blocks, usage=usage)

    def _stopped(self, finish: Finish, stop: str | None) -> Stopped:
        reason: StopReason = "end_turn"
        if finish == "length":
            reason = self._limit
        elif stop is not None:
            reason = "stop_sequence"
        elif any(isinstance(block, ToolUseAnswer) for block in self._blocks):
            reason = "tool_use"
        return Stopped(stop_reason=reason, stop_sequence=stop)


def _input(text: str) -> dict[str, Any]:
    """Returns a call's arguments as an object. What is none, for it was cut off, goes as text into a field of its own.

    Anthropic tells clients to send it back like this.
    """
    try:
        found = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"INVALID_JSON": text}
