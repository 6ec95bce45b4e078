"""Gives the answer to one request the shape of the Responses API, whole and in events, and has it stored."""

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
from msgspec import structs

from contracts.messages.sampling import Finish
from contracts.scores import Scores
from gateway.errors import APIError
from gateway.openai.answers.logprobs import Scored, TokenNames, of_chat
from gateway.openai.answers.replies import COMMENT, Answer
from gateway.openai.answers.thoughts import Thoughts
from gateway.output.parts import Content, Part
from gateway.requests.request import Request
from gateway.requests.stream import Delta
from gateway.responses.answers import ResponseShape
from gateway.responses.events import InputDetails, OutputDetails, ResponseAnswer, Usage, encoded
from gateway.responses.items import Logprob
from gateway.responses.schemas import PlainText, ReasoningConfig, ResponsesRequest, TextConfig
from gateway.responses.text_scores import TextScores
from gateway.text.token_bytes import TokenBytes

Keep = Callable[[ResponseAnswer], Awaitable[bool]]


class ResponseShaper:
    """Shapes the answer of a request, which has one sample. `keep` stores a response, and returns whether it could.

    `thought_end` is the token behind a model's thoughts, if there is one.
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
        self._sample = request.samples[0]
        self._keep = keep
        self._top = (body.top_logprobs or 0) if body.wants_logprobs else None
        self._names = TokenNames(tokens, as_ids=False)
        self._thoughts = Thoughts(thought_end, 1)
        self._scores = TextScores()
        self._shape = ResponseShape(request.id, self._empty(model, body, request.id))
        self._begun = False
        self._finish: Finish = "stop"

    async def chunks(self, choice: int, parts: Sequence[Part], delta: Delta, last: bool) -> AsyncIterator[bytes]:
        """Yields the beginning first, then what has come."""
        if not self._begun:
            self._begun = True
            for event in self._shape.begin():
                yield encoded(event)
        self._thoughts.add(0, parts, delta.token_ids)
        logprobs = await self._logprobs(parts, delta.token_ids, delta.scores)
        for event in self._shape.take(parts, logprobs):
            yield encoded(event)
        if delta.finish is not None:
            self._finish = delta.finish

    def quick(self, choice: int, parts: Sequence[Part], token_ids: Sequence[int]) -> bytes | None:
        """Returns the events of what has come in the middle of the answer."""
        if not self._begun or self._top is not None:
            return None
        self._thoughts.add(0, parts, token_ids)
        return b"".join(map(encoded, self._shape.take(parts, ())))

    def text(self, choice: int, text: str, token_ids: Sequence[int]) -> bytes | None:
        """Returns the events of a text in the middle of the answer."""
        return self.quick(choice, (Content(text),) if text else (), token_ids)

    def alive(self) -> bytes:
        """Returns a comment."""
        return COMMENT

    async def end(self) -> AsyncIterator[bytes]:
        """Yields the ends of what is open, and the whole response when it is stored: a client may go on from it."""
        for event in self._shape.end(self._finish):
            yield encoded(event)
        for event in self._shape.ended(await self._kept(self._finish)):
            yield encoded(event)

    async def whole(self, answers: Sequence[Answer]) -> ResponseAnswer:
        """Returns the whole response."""
        (answer,) = answers
        self._thoughts.add(0, answer.parts, answer.token_ids)
        self._shape.take(answer.parts, await self._logprobs(answer.parts, answer.token_ids, answer.scores))
        return await self._kept(answer.finish or "stop")

    def failure(self, error: APIError) -> bytes:
        """Returns the last event of a stream that has failed."""
        return b"".join(encoded(event) for event in self._shape.failed("server_error", error.message))

    async def _kept(self, finish: Finish) -> ResponseAnswer:
        response = self._shape.whole(finish, self._usage())
        if self._keep is None or await self._keep(response):
            return response
        return structs.replace(response, store=False)

    async def _logprobs(
        self, parts: Sequence[Part], token_ids: Sequence[int], scores: Scores | None
    ) -> Sequence[Logprob]:
        """Returns the log-probabilities of the text among these parts."""
        if self._top is None or scores is None:
            return ()
        told = await of_chat(Scored(token_ids, scores), self._top, self._names)
        self._scores.add(msgspec.json.decode(one, type=Logprob) for one in told["content"])
        return self._scores.of(parts)

    def _usage(self) -> Usage:
        prompt, output = len(self._sample.prompt.token_ids), len(self._sample.tokens)
        return Usage(
            input_tokens=prompt,
            input_tokens_details=InputDetails(cached_tokens=self._sample.stages.cached_tokens),
            output_tokens=output,
            output_tokens_details=OutputDetails(reasoning_tokens=self._thoughts.total() or 0),
            total_tokens=prompt + output,
        )

    def _empty(self, model: str, body: ResponsesRequest, request: str) -> ResponseAnswer:
        """Returns the response before there is any output. Its id cannot be guessed, so it gives nothing away."""
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
            text=structs.replace(text, format=text.format or PlainText()),
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
        )
