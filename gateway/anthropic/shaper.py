"""Shapes the answer to a request as Anthropic's Messages API does, whole and as a stream."""

from collections.abc import AsyncIterator, Sequence

import msgspec

from gateway.anthropic.answers import MessageShape
from gateway.anthropic.events import Event, MessageAnswer, MessageUsage, PingEvent, encoded
from gateway.anthropic.schemas import MessagesRequest
from gateway.errors import APIError
from gateway.openai.answers.replies import Answer
from gateway.output.parts import Part
from gateway.requests.request import Request
from gateway.shaping.one_answer import OneAnswerShaper


class MessageShaper(OneAnswerShaper[Event]):
    """Shaper of a request, which has one sample."""

    def __init__(self, model: str, body: MessagesRequest, request: Request) -> None:
        super().__init__(encoded)
        self._id = request.id
        self._sample = request.samples[0]
        hides = getattr(body.thinking, "display", None) == "omitted"
        cut = body.max_tokens > self._sample.admitted.limits.max_tokens
        self._shape = MessageShape(request.id, model, hides_thoughts=hides, ends_with_context=cut)

    def _first(self) -> Sequence[Event]:
        return self._shape.begin(self._usage())

    def _next(self, parts: Sequence[Part], token_ids: Sequence[int]) -> Sequence[Event]:
        return self._shape.take(parts)

    def alive(self) -> bytes:
        return encoded(PingEvent())

    async def end(self) -> AsyncIterator[bytes]:
        yield self._joined(self._shape.end(self._finish, _sequence(self._stop_reason), self._usage()))

    def failure(self, error: APIError) -> bytes:
        return b"event: error\ndata: %s\n\n" % msgspec.json.encode(error.anthropic_body(self._id))

    async def whole(self, answers: Sequence[Answer]) -> MessageAnswer:
        (answer,) = answers
        self._shape.take(answer.parts)
        return self._shape.whole(answer.finish or "stop", _sequence(answer.stop_reason), self._usage())

    def _usage(self) -> MessageUsage:
        prompt, cached = len(self._sample.prompt.token_ids), self._sample.stages.cached_tokens
        return MessageUsage(
            input_tokens=prompt - cached,
            cache_read_input_tokens=cached,
            output_tokens=len(self._sample.tokens),
        )


def _sequence(reason: int | str | None) -> str | None:
    """Returns the stop sequence that has ended an answer; None if a stop token did."""
    return reason if isinstance(reason, str) else None
