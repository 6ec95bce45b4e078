"""Builds the fields that all of OpenAI's answers share: id and model, usage, and metrics."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.openai.answers.json_pieces import json_pieces
from gateway.openai.answers.logprobs import ScoredTokens, TokenNames, prompt_logprobs
from gateway.openai.answers.replies import DONE_EVENT, Answer, event
from gateway.openai.bodies.schemas import SamplingFields, StreamOptions
from gateway.requests.request import Request
from gateway.requests.stream import Delta, Stream
from gateway.text.token_bytes import TokenBytes

NO_OPTIONS = StreamOptions()
EVENT_END = b"\n\n"

encode = msgspec.json.Encoder().encode


class AnswerEnvelope:
    """Common fields of one answer. Its choices are the samples of `requests`, one request for each prompt, in order.

    `kind` is the field `object`. `made` is False if the client wants no tokens, although one is always sampled.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        model: str,
        body: SamplingFields,
        requests: Sequence[Request],
        tokens: TokenBytes,
        made: bool = True,
    ) -> None:
        self._head = {
            "id": f"{name}-{requests[0].id}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,
        }
        self._requests = requests
        self._streams: list[Stream] = []
        self._request_of: list[Request] = []  # request of each choice
        for request in requests:
            self._streams += request.streams
            self._request_of += [request] * len(request.streams)
        self._prompt_top = body.prompt_logprobs
        self._made = made
        options = body.stream_options or NO_OPTIONS
        self._include_usage = bool(options.include_usage)
        self._continuous = bool(options.continuous_usage_stats)
        # JSON of every chunk before and after its choice.
        self._front = b"data: " + encode(self._head)[:-1] + b',"choices":['
        self._rest = (b'],"usage":null}' if self._include_usage else b"]}") + EVENT_END
        self.names = TokenNames(tokens, bool(body.return_tokens_as_token_ids))
        self.wants_ids = bool(body.return_token_ids)
        self.wants_all = self.wants_ids or self._continuous  # a token without text makes a chunk too
        self.choices = len(self._streams)
        self._passed = [0] * self.choices  # tokens in the chunks of each choice

    def passes(self, choice: int, token_ids: Sequence[int]) -> None:
        """Counts the tokens of the next chunk of a choice. The sample itself may be ahead of its chunks."""
        self._passed[choice] += len(token_ids)

    def chunk(self, choice: dict[str, Any], more: dict[str, Any] | None = None) -> bytes:
        return self._front + encode(choice) + self._behind(choice, more)

    def pieces(self, choice: dict[str, Any]) -> Iterator[bytes]:
        """Yields the event of a chunk in pieces, since the scores of a prompt make it large."""
        yield self._front
        yield from json_pieces(choice)
        yield self._behind(choice, None)

    def _behind(self, choice: dict[str, Any], more: dict[str, Any] | None) -> bytes:
        if self._continuous:
            more = {"usage": self._usage_so_far(choice["index"]), **(more or {})}
        elif more is not None and self._include_usage:
            more = {"usage": None, **more}
        return self._rest if more is None else b"]," + encode(more)[1:] + EVENT_END

    def finish(self, choice: dict[str, Any], delta: Delta, reason: str, last: bool) -> bytes:
        """Returns the last chunk of a choice. The last chunk of a stream has metrics for `vllm bench serve`."""
        choice |= {"finish_reason": reason, "stop_reason": delta.stop_reason}
        return self.chunk(choice, {"metrics": self._metrics()} if last and not self._include_usage else None)

    def last(self, thoughts: int | None = None) -> bytes:
        """Returns the end of a stream, after a chunk with the usage if the client wants it."""
        if not self._include_usage:
            return DONE_EVENT
        usage = {**self._head, "choices": [], "usage": self._usage(thoughts), "metrics": self._metrics()}
        return event(usage) + DONE_EVENT

    def whole(self, choices: list[dict[str, Any]], thoughts: int | None = None) -> dict[str, Any]:
        return {**self._head, "choices": choices, "usage": self._usage(thoughts), "metrics": self._metrics()}

    def ids(self, token_ids: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": token_ids} if self.wants_ids else {}

    def prompt_ids(self, choice: int) -> list[int]:
        return list(self._request_of[choice].samples[0].prompt.token_ids)

    def prompt_scored(self, choice: int) -> ScoredTokens:
        """Returns the scored tokens of a choice's prompt: all but the first, which has no score."""
        return ScoredTokens(self.prompt_ids(choice)[1:], self._request_of[choice].prompt_scores)

    async def prompt_logprobs(self, choice: int) -> dict[str, Any]:
        if self._prompt_top is None:
            return {}
        return {"prompt_logprobs": await prompt_logprobs(self.prompt_scored(choice), self._prompt_top, self.names)}

    def _usage(self, thoughts: int | None) -> dict[str, Any]:
        prompt = sum(len(request.samples[0].prompt.token_ids) for request in self._requests)
        output = sum(len(stream.sample.tokens) for stream in self._streams) if self._made else 0
        cached = sum(max(sample.stages.cached_tokens for sample in request.samples) for request in self._requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        } | ({} if thoughts is None else {"completion_tokens_details": {"reasoning_tokens": thoughts}})

    def _usage_so_far(self, choice: int) -> dict[str, Any]:
        """Counts the tokens of a choice's prompt and of its chunks so far."""
        prompt, output = len(self.prompt_ids(choice)), self._passed[choice] if self._made else 0
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def _metrics(self) -> dict[str, float]:
        now = time.monotonic()
        return {
            "queue_time_ms": round(max(stream.sample.stages.queue_ms for stream in self._streams), 3),
            "time_to_first_token_ms": round(min(stream.timings(now).ttft_ms for stream in self._streams), 3),
        }


def ended(answer: Answer) -> dict[str, Any]:
    return {"finish_reason": answer.finish, "stop_reason": answer.stop_reason}
