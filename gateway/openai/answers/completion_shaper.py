"""Shapes completions as OpenAI does, whole and in chunks, with their prompts if the client wants an echo."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from contracts.scores import Scores
from gateway.errors import APIError
from gateway.openai.answers.best import best
from gateway.openai.answers.envelope import AnswerEnvelope, ended
from gateway.openai.answers.logprobs import CompletionLogprobsEncoder, ScoredTokens
from gateway.openai.answers.replies import KEEP_ALIVE_COMMENT, Answer, failure_events
from gateway.openai.answers.text_template import TextTemplate
from gateway.openai.bodies.schemas import CompletionRequest
from gateway.output.parts import Content, Part
from gateway.requests.request import Request
from gateway.requests.stream import Delta
from gateway.text.tokenizer import ModelTokenizer


class CompletionShaper:
    """Shaper of the answers to all prompts of one body."""

    def __init__(
        self, model: str, body: CompletionRequest, requests: Sequence[Request], tokenizer: ModelTokenizer
    ) -> None:
        self._only_echo = body.only_echo()
        made = not self._only_echo
        self._answers = AnswerEnvelope("cmpl", "text_completion", model, body, requests, tokenizer.bytes_of, made)
        self._tokenizer = tokenizer
        self._skips_special = body.skip_special_tokens is not False
        self._prompts = body.prompts() if body.echo else None
        self._wanted = body.n or 1
        self._made = len(requests[0].streams)
        self._top = body.logprobs
        self._all = self._answers.wants_all or self._top is not None
        self._texts = [TextTemplate(partial(self._event, choice)) for choice in range(self._answers.choices)]
        self._logprobs: dict[int, CompletionLogprobsEncoder] = {}  # by choice that has begun

    def chunks(self, choice: int, parts: Sequence[Part], delta: Delta, last: bool) -> bytes | AsyncIterator[bytes]:
        """Returns the chunks of new parts: the echoed prompt first, and the finish reason last."""
        if self._all or self._only_echo or delta.finish is not None or choice not in self._logprobs:
            return self._chunks(choice, parts, delta, last)
        text = _text(parts)
        return self._texts[choice].of(text) if text else b""

    async def _chunks(self, choice: int, parts: Sequence[Part], delta: Delta, last: bool) -> AsyncIterator[bytes]:
        answers = self._answers
        if choice not in self._logprobs:
            text, logprobs = await self._begin(choice)
            if self._prompts is not None or answers.wants_ids:
                prompt = {"prompt_token_ids": answers.prompt_ids(choice)} if answers.wants_ids else {}
                begun = _choice(choice, text, logprobs or await self._no_scores(choice))
                for piece in answers.pieces(begun | prompt | answers.ids(())):
                    yield piece
        answers.passes(choice, delta.token_ids)
        text = "" if self._only_echo else _text(parts)
        if text or (self._all and delta.token_ids and not self._only_echo):
            logprobs = await self._scored(choice, delta.token_ids, delta.scores)
            yield answers.chunk(_choice(choice, text, logprobs) | answers.ids(delta.token_ids))
        if delta.finish is not None:
            reason = "length" if self._only_echo else delta.finish
            ended = _choice(choice, "", await self._no_scores(choice)) | answers.ids(())
            yield answers.finish(ended, delta, reason, last)

    def alive(self) -> bytes:
        return KEEP_ALIVE_COMMENT

    async def end(self) -> AsyncIterator[bytes]:
        yield self._answers.last()

    def failure(self, error: APIError) -> bytes:
        return failure_events(error)

    async def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        choices = []
        for index, (number, answer) in enumerate(best(answers, self._made, self._wanted)):
            text, logprobs = await self._begin(number)
            if not self._only_echo:
                text += answer.content
                logprobs = _joined(logprobs, await self._scored(number, answer.token_ids, answer.scores))
            choice = {"index": index, "text": text, "logprobs": logprobs, **ended(answer)}
            if self._only_echo:
                choice["finish_reason"] = "length"
            if self._answers.wants_ids:
                choice["token_ids"] = [] if self._only_echo else answer.token_ids
                choice["prompt_token_ids"] = self._answers.prompt_ids(number)
            choices.append(choice | await self._answers.prompt_logprobs(number))
        return self._answers.whole(choices)

    def _event(self, choice: int, text: str) -> bytes:
        return self._answers.chunk(_choice(choice, text, None))

    async def _begin(self, choice: int) -> tuple[str, dict[str, Any] | None]:
        """Begins a choice. Returns the prompt's text and scores for an echo, else an empty text and None."""
        logprobs = self._logprobs[choice] = CompletionLogprobsEncoder(
            self._top or 0, self._answers.names, self._is_shown
        )
        if self._prompts is None:
            return "", None
        prompt = self._prompts[choice // self._made]
        text = prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)
        if self._top is None:
            return text, None
        return text, await logprobs.of(self._answers.prompt_scored(choice), self._answers.prompt_ids(choice)[0])

    async def _scored(self, choice: int, token_ids: Sequence[int], scores: Scores | None) -> dict[str, Any] | None:
        if self._top is None or scores is None:
            return None
        return await self._logprobs[choice].of(ScoredTokens(token_ids, scores))

    async def _no_scores(self, choice: int) -> dict[str, Any] | None:
        """Returns the scores of a chunk without tokens: empty lists if the client wants scores, else None."""
        return None if self._top is None else await self._logprobs[choice].of(ScoredTokens((), None))

    def _is_shown(self, token: int) -> bool:
        return not self._skips_special or self._tokenizer.piece(token) is not None


def _text(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


def _choice(index: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}


def _joined(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    if one is None or other is None:
        return one or other
    return {name: one[name] + other[name] for name in one}
