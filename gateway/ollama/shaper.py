"""Shapes an answer as Ollama does: lines of JSON while it comes, or one object."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, structs

from gateway.errors import APIError
from gateway.ollama.answers import OllamaAnswerMessage, OllamaChatAnswer, OllamaGenerated, OllamaLine, rfc3339
from gateway.ollama.schemas import OllamaFunctionCall, OllamaToolCall
from gateway.openai.answers.replies import Answer
from gateway.output.parts import CallArguments, CallBegins, Content, Part, Reasoning
from gateway.requests.request import Request
from gateway.shaping.items import ItemShape
from gateway.shaping.one_answer import OneAnswerShaper

NS_PER_MS = 1_000_000
_encoder = msgspec.json.Encoder()


def line(data: Any) -> bytes:
    return _encoder.encode(data) + b"\n"


class OllamaMessageShape(ItemShape[str, OllamaAnswerMessage]):
    """Parts of one message as Ollama sends them. An item is a called tool's name; calls are sent when complete."""

    def end(self) -> Sequence[OllamaAnswerMessage]:
        return self._close()

    def _item(self, part: Content | Reasoning | CallBegins) -> str:
        return part.name if isinstance(part, CallBegins) else ""

    def _opened(self, item: str) -> Sequence[OllamaAnswerMessage]:
        return ()

    def _extended(self, part: Content | Reasoning | CallArguments) -> Sequence[OllamaAnswerMessage]:
        match part:
            case Content(text):
                return [OllamaAnswerMessage(content=text)]
            case Reasoning(text):
                return [OllamaAnswerMessage(thinking=text)]
        return ()

    def _closed(self, item: str, text: str, cut: bool) -> Sequence[OllamaAnswerMessage]:
        if not item:
            return ()
        try:
            arguments = msgspec.json.decode(text or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return ()  # a call that was cut off is left out
        return [
            OllamaAnswerMessage(
                tool_calls=[OllamaToolCall(function=OllamaFunctionCall(name=item, arguments=arguments))]
            )
        ]


class OllamaShaper(OneAnswerShaper[OllamaLine]):
    """Shaper of a request, which has one sample; `chat`: of a chat, and not of a single prompt."""

    def __init__(self, model: str, request: Request, chat: bool) -> None:
        super().__init__(line)
        self._model = model
        self._stream = request.streams[0]
        self._chat = chat
        self._shape = OllamaMessageShape()

    def _first(self) -> Sequence[OllamaLine]:
        return ()

    def _next(self, parts: Sequence[Part], token_ids: Sequence[int]) -> Sequence[OllamaLine]:
        return [self._line(said) for said in self._shape.take(parts)]

    def alive(self) -> bytes:
        return line(self._line(OllamaAnswerMessage()))

    async def end(self) -> AsyncIterator[bytes]:
        yield self._joined([*(self._line(said) for said in self._shape.end()), self._done(OllamaAnswerMessage())])

    def failure(self, error: APIError) -> bytes:
        return line(error.ollama_body())

    async def whole(self, answers: Sequence[Answer]) -> OllamaLine:
        (answer,) = answers
        self._finish = answer.finish or "stop"
        said = [*self._shape.take(answer.parts), *self._shape.end()]
        calls = [call for one in said for call in one.tool_calls or ()]
        return self._done(
            OllamaAnswerMessage(content=answer.content, thinking=answer.reasoning or UNSET, tool_calls=calls or UNSET)
        )

    def _line(self, message: OllamaAnswerMessage) -> OllamaLine:
        common: dict[str, Any] = {"model": self._model, "created_at": rfc3339(time.time())}
        if self._chat:
            return OllamaChatAnswer(message=message, **common)
        return OllamaGenerated(response=message.content, thinking=message.thinking, **common)

    def _done(self, message: OllamaAnswerMessage) -> OllamaLine:
        timings, sample = self._stream.timings(time.monotonic()), self._stream.sample
        return structs.replace(
            self._line(message),
            done=True,
            done_reason="length" if self._finish == "length" else "stop",
            total_duration=int(timings.e2e_ms * NS_PER_MS),
            load_duration=0,
            prompt_eval_count=len(sample.prompt.token_ids),
            prompt_eval_duration=int(timings.ttft_ms * NS_PER_MS),
            eval_count=len(sample.tokens),
            eval_duration=int((timings.e2e_ms - timings.ttft_ms) * NS_PER_MS),
        )
