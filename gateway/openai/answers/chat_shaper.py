"""Shapes the answer to a chat as OpenAI does, whole and in chunks."""

import secrets
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from contracts.messages.sampling import Finish
from contracts.scores import Scores
from gateway.errors import APIError
from gateway.openai.answers.best import best
from gateway.openai.answers.envelope import AnswerEnvelope, ended
from gateway.openai.answers.logprobs import ScoredTokens, chat_logprobs
from gateway.openai.answers.replies import KEEP_ALIVE_COMMENT, Answer, failure_events
from gateway.openai.answers.text_template import TextTemplate
from gateway.openai.answers.thought_counter import ThoughtCounter
from gateway.openai.bodies.continuation import echoed_beginning
from gateway.openai.bodies.schemas import ChatRequest
from gateway.output.parts import CallArguments, CallBegins, Content, Part, Reasoning
from gateway.requests.request import Request
from gateway.requests.stream import Delta
from gateway.text.token_bytes import TokenBytes


class ChatShaper:
    """Shaper of one chat. `thought_end` is the token that ends a model's thoughts, or None."""

    def __init__(
        self, model: str, body: ChatRequest, requests: Sequence[Request], tokens: TokenBytes, thought_end: int | None
    ) -> None:
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._answers = AnswerEnvelope("chatcmpl", kind, model, body, requests, tokens)
        self._wanted = body.n or 1
        self._made = len(requests[0].streams)
        self._top = (body.top_logprobs or 0) if body.logprobs else None
        self._legacy = body.functions is not None
        self._all = self._answers.wants_all or self._top is not None
        self._thinks = thought_end is not None
        self._echoed = echoed_beginning(body)
        self._hides_thoughts = body.include_reasoning is False
        self._thoughts = ThoughtCounter(thought_end, self._answers.choices)
        self._texts = [TextTemplate(partial(self._content, choice)) for choice in range(self._answers.choices)]
        self._begun: set[int] = set()
        self._called: set[int] = set()
        self._custom: set[tuple[int, int]] = set()  # calls of custom tools, by choice and number

    def chunks(self, choice: int, parts: Sequence[Part], delta: Delta, last: bool) -> bytes | AsyncIterator[bytes]:
        """Returns the chunks of new parts: the role first, and the finish reason last."""
        if self._all or delta.finish is not None or choice not in self._begun:
            return self._chunks(choice, parts, delta, last)
        text = ""
        if parts:
            part = parts[0]
            if len(parts) > 1 or not isinstance(part, Content):
                return self._chunks(choice, parts, delta, last)
            text = part.text
        if self._thinks:
            self._thoughts.add(choice, (), delta.token_ids)
        return self._texts[choice].of(text) if text else b""

    async def _chunks(self, choice: int, parts: Sequence[Part], delta: Delta, last: bool) -> AsyncIterator[bytes]:
        answers = self._answers
        if choice not in self._begun:
            self._begun.add(choice)
            prompt = {"prompt_token_ids": answers.prompt_ids(choice)} if answers.wants_ids else None
            begin = {"role": "assistant", "content": self._echoed}
            yield answers.chunk(await self._without_tokens(choice, begin), prompt)
        answers.passes(choice, delta.token_ids)
        self._thoughts.add(choice, parts, delta.token_ids)
        said = self._delta(choice, parts) if parts else {}
        if said or (self._all and delta.token_ids):
            one = _choice(choice, said or {"content": ""})
            if self._all:
                one["logprobs"] = await self._logprobs(delta.token_ids, delta.scores)
                one |= answers.ids(delta.token_ids)
            yield answers.chunk(one)
        if delta.finish is not None:
            reason = self._reason(delta.finish, choice in self._called)
            yield answers.finish(await self._without_tokens(choice, {}), delta, reason, last)

    def alive(self) -> bytes:
        return KEEP_ALIVE_COMMENT

    async def end(self) -> AsyncIterator[bytes]:
        yield self._answers.last(self._thoughts.total())

    def failure(self, error: APIError) -> bytes:
        return failure_events(error)

    async def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        choices = []
        for number, answer in enumerate(answers):
            self._thoughts.add(number, answer.parts, answer.token_ids)
        for index, (_, answer) in enumerate(best(answers, self._made, self._wanted)):
            choice = {
                "index": index,
                "message": self._message(answer),
                "logprobs": await self._logprobs(answer.token_ids, answer.scores),
                **ended(answer),
                **self._answers.ids(answer.token_ids),
            }
            if answer.finish is not None:
                choice["finish_reason"] = self._reason(answer.finish, bool(answer.calls))
            choices.append(choice)
        prompt = {"prompt_token_ids": self._answers.prompt_ids(0)} if self._answers.wants_ids else {}
        return self._answers.whole(choices, self._thoughts.total()) | prompt | await self._answers.prompt_logprobs(0)

    def _content(self, choice: int, text: str) -> bytes:
        return self._answers.chunk(_choice(choice, {"content": text}))

    def _message(self, answer: Answer) -> dict[str, Any]:
        calls, thought = answer.calls, "" if self._hides_thoughts else answer.reasoning
        content = self._echoed + answer.content or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if thought:
            message |= {"reasoning_content": thought, "reasoning": thought}
        if calls and self._legacy:
            message["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
        elif calls:
            message["tool_calls"] = [{"id": _call_id(), **_called(*call)} for call in calls]
        return message

    def _delta(self, choice: int, parts: Sequence[Part]) -> dict[str, Any]:
        if len(parts) == 1 and isinstance(parts[0], Content):  # the usual case
            return {"content": parts[0].text}
        delta: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        for part in parts:
            match part:
                case Content(text):
                    delta["content"] = delta.get("content", "") + text
                case Reasoning(text) if not self._hides_thoughts:
                    delta["reasoning_content"] = delta["reasoning"] = delta.get("reasoning", "") + text
                case CallBegins(call, name, custom):
                    calls[call] = {"index": call, "id": _call_id(), **_called(name, "", custom)}
                    self._called.add(choice)
                    if custom:
                        self._custom.add((choice, call))
                case CallArguments(call, text):
                    kind, field = ("custom", "input") if (choice, call) in self._custom else ("function", "arguments")
                    calls.setdefault(call, {"index": call, kind: {field: ""}})[kind][field] += text
        if calls and not self._legacy:
            delta["tool_calls"] = list(calls.values())
        elif 0 in calls:
            delta["function_call"] = calls[0]["function"]
        return delta

    def _reason(self, finish: Finish, called: bool) -> str:
        if finish != "stop" or not called:
            return finish
        return "function_call" if self._legacy else "tool_calls"

    async def _without_tokens(self, choice: int, delta: dict[str, Any]) -> dict[str, Any]:
        scores = (
            None if self._top is None else await chat_logprobs(ScoredTokens((), None), self._top, self._answers.names)
        )
        return _choice(choice, delta) | {"logprobs": scores} | self._answers.ids(())

    async def _logprobs(self, token_ids: Sequence[int], scores: Scores | None) -> dict[str, Any] | None:
        if self._top is None or scores is None:
            return None
        return await chat_logprobs(ScoredTokens(token_ids, scores), self._top, self._answers.names)


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _called(name: str, arguments: str, custom: bool) -> dict[str, Any]:
    if custom:
        return {"type": "custom", "custom": {"name": name, "input": arguments}}
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
