"""Shapes the answer to a request as the Responses API does, whole and as a stream, and stores it."""

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
from msgspec import structs

from contracts.messages.sampling import Finish
from contracts.scores import Scores
from gateway.errors import APIError
from gateway.openai.answers.logprobs import ScoredTokens, TokenNames, chat_logprobs
from gateway.openai.answers.replies import KEEP_ALIVE_COMMENT, Answer
from gateway.openai.answers.thought_counter import ThoughtCounter
from gateway.output.parts import Part
from gateway.requests.request import Request
from gateway.requests.stream import Delta
from gateway.responses.answers import ResponseShape
from gateway.responses.events import (
    Event,
    ResponseAnswer,
    ResponseInputDetails,
    ResponseOutputDetails,
    ResponseUsage,
    encoded,
)
from gateway.responses.items import TextLogprob
from gateway.responses.schemas import PlainTextFormat, ReasoningConfig, ResponsesRequest, TextConfig
from gateway.responses.text_scores import TextScores
from gateway.shaping.one_answer import OneAnswerShaper
from gateway.text.token_bytes import TokenBytes

Keep = Callable[[ResponseAnswer], Awaitable[bool]]


class ResponseShaper(OneAnswerShaper[Event]):
    """Shaper of a request, which has one sample. `keep` stores a response, and returns whether it could.

    `thought_end` is the token that ends a model's thoughts, or None.
    """

    def __init__(
        self,
        model: str,
        body: ResponsesRequest,
        request: Request,
        tokens: TokenBytes,
        thought_end: int | None,
        keep: Keep | None,
    ) -> None:
        super().__init__(encoded)
        self._sample = request.samples[0]
        self._keep = keep
        self._top = (body.top_logprobs or 0) if body.wants_logprobs else None
        self._in_turns = self._top is not None
        self._names = TokenNames(tokens, as_ids=False)
        self._thoughts = ThoughtCounter(thought_end, 1)
        self._scores = TextScores()
        self._shape = ResponseShape(request.id, self._empty(model, body, request.id))

    def _first(self) -> Sequence[Event]:
        return self._shape.begin()

    def _next(self, parts: Sequence[Part], token_ids: Sequence[int]) -> Sequence[Event]:
        self._thoughts.add(0, parts, token_ids)
        return self._shape.take(parts)

    async def _shaped(self, parts: Sequence[Part], delta: Delta) -> Sequence[Event]:
        self._thoughts.add(0, parts, delta.token_ids)
        return self._shape.take(parts, await self._logprobs(parts, delta.token_ids, delta.scores))

    def alive(self) -> bytes:
        return KEEP_ALIVE_COMMENT

    async def end(self) -> AsyncIterator[bytes]:
        """Yields the last events. The response is stored before its event, as a client may continue from it at once."""
        if events := self._shape.end(self._finish):
            yield self._joined(events)
        yield self._joined(self._shape.ended(await self._stored(self._finish)))

    async def whole(self, answers: Sequence[Answer]) -> ResponseAnswer:
        (answer,) = answers
        self._thoughts.add(0, answer.parts, answer.token_ids)
        self._shape.take(answer.parts, await self._logprobs(answer.parts, answer.token_ids, answer.scores))
        return await self._stored(answer.finish or "stop")

    def failure(self, error: APIError) -> bytes:
        return self._joined(self._shape.failed("server_error", error.message))

    async def _stored(self, finish: Finish) -> ResponseAnswer:
        response = self._shape.whole(finish, self._usage())
        if self._keep is None or await self._keep(response):
            return response
        return structs.replace(response, store=False)

    async def _logprobs(
        self, parts: Sequence[Part], token_ids: Sequence[int], scores: Scores | None
    ) -> Sequence[TextLogprob]:
        if self._top is None or scores is None:
            return ()
        told = await chat_logprobs(ScoredTokens(token_ids, scores), self._top, self._names)
        self._scores.add(msgspec.json.decode(one, type=TextLogprob) for one in told["content"])
        return self._scores.of(parts)

    def _usage(self) -> ResponseUsage:
        prompt, output = len(self._sample.prompt.token_ids), len(self._sample.tokens)
        return ResponseUsage(
            input_tokens=prompt,
            input_tokens_details=ResponseInputDetails(cached_tokens=self._sample.stages.cached_tokens),
            output_tokens=output,
            output_tokens_details=ResponseOutputDetails(reasoning_tokens=self._thoughts.total() or 0),
            total_tokens=prompt + output,
        )

    def _empty(self, model: str, body: ResponsesRequest, request: str) -> ResponseAnswer:
        """Returns the response without output. Its id is random, so that other clients cannot guess it."""
        sampling = self._sample.admitted.sampling
        text = body.text or TextConfig()
        return ResponseAnswer(
            id=f"resp_{request}_{secrets.token_hex(16)}",
            created_at=int(time.time()),
            model=model,
            status="in_progress",
            output=[],
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            store=self._keep is not None,
            tools=body.tools or [],
            tool_choice=body.tool_choice or "auto",
            parallel_tool_calls=body.parallel_tool_calls is not False,
            text=structs.replace(text, format=text.format or PlainTextFormat()),
            reasoning=body.reasoning or ReasoningConfig(),
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            metadata=body.metadata or {},
            previous_response_id=body.previous_response_id,
            prompt_cache_key=body.prompt_cache_key,
            safety_identifier=body.safety_identifier,
            top_logprobs=body.top_logprobs or 0,
            user=body.user,
            truncation=body.truncation or "disabled",
        )
