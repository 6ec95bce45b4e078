"""Gives the answer to one request the shape of Anthropic's Messages API, whole and in events."""

from collections.abc import AsyncIterator, Sequence

import msgspec

from contracts.messages.sampling import Finish
from gateway.anthropic.answers import MessageShape
from gateway.anthropic.events import MessageAnswer, Ping, Usage, encoded
from gateway.anthropic.schemas import MessagesRequest
from gateway.errors import APIError
from gateway.openai.answers.replies import Answer
from gateway.output.parts import Content, Part
from gateway.requests.request import Request
from gateway.requests.stream import Delta


class MessageShaper:
    """Shapes the answer of a request, which has one sample."""

    def __init__(self, model: str, body: MessagesRequest, request: Request) -> None:
        self._sample = request.samples[0]
        hides = getattr(body.thinking, "display", None) == "omitted"
        cut = body.max_tokens > self._sample.admitted.limits.max_tokens
        self._shape = MessageShape(request.id, model, hides_thoughts=hides, ends_with_context=cut)
        self._begun = False
        self._finish: Finish = "stop"
        self._stop: str | None = None

    async def chunks(self, choice: int, parts: Sequence[Part], delta: Delta, last: bool) -> AsyncIterator[bytes]:
        """Yields the beginning first, then what has come."""
        if not self._begun:
            self._begun = True
            for event in self._shape.begin(self._usage()):
                yield encoded(event)
        for event in self._shape.take(parts):
            yield encoded(event)
        if delta.finish is not None:
            self._finish, self._stop = delta.finish, _sequence(delta.stop_reason)

    def quick(self, choice: int, parts: Sequence[Part], token_ids: Sequence[int]) -> bytes | None:
        """Returns the events of what has come in the middle of the answer."""
        return b"".join(map(encoded, self._shape.take(parts))) if self._begun else None

    def text(self, choice: int, text: str, token_ids: Sequence[int]) -> bytes | None:
        """Returns the events of a text in the middle of the answer."""
        return self.quick(choice, (Content(text),) if text else (), token_ids)

    def alive(self) -> bytes:
        """Returns a ping."""
        return encoded(Ping())

    async def end(self) -> AsyncIterator[bytes]:
        """Yields the end of what is open, the reason of the end, and the usage."""
        for event in self._shape.end(self._finish, self._stop, self._usage()):
            yield encoded(event)

    async def whole(self, answers: Sequence[Answer]) -> MessageAnswer:
        """Returns the whole answer."""
        (answer,) = answers
        self._shape.take(answer.parts)
        return self._shape.whole(answer.finish or "stop", _sequence(answer.stop_reason), self._usage())

    def _usage(self) -> Usage:
        prompt, cached = len(self._sample.prompt.token_ids), self._sample.stages.cached_tokens
        return Usage(
            input_tokens=prompt - cached,
            cache_read_input_tokens=cached,
            output_tokens=len(self._sample.tokens),
        )


def failure(error: APIError, request: str) -> bytes:
    """Returns the last event of a stream that has failed; `request` is the request's id."""
    return b"event: error\ndata: %s\n\n" % msgspec.json.encode(error.anthropic_body(request))


def _sequence(reason: int | str | None) -> str | None:
    """Returns the stop sequence that has ended an answer. A token is none."""
    return reason if isinstance(reason, str) else None
