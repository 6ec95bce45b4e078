"""Shapes answers as OpenAI does, whole and in chunks."""

import time
from collections.abc import Sequence
from typing import Any, Literal

from core.messages import Finish
from gateway.requests.request import Request

Kind = Literal["chat", "completion"]
_OBJECTS = {"chat": "chat.completion", "completion": "text_completion"}


class Answers:
    """Shapes one answer. Its choices are the samples of `requests`, of which there is one for each prompt, in order."""

    def __init__(self, kind: Kind, model: str, requests: Sequence[Request], include_usage: bool = False) -> None:
        self._kind = kind
        self._requests = requests
        self._streams = [stream for request in requests for stream in request.streams]
        self._include_usage = include_usage
        self._shared = {
            "id": f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{self.id}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,
        }

    @property
    def id(self) -> str:
        """Returns the id of the (first) request, under which the records have it."""
        return self._requests[0].id

    def whole(self, texts: Sequence[str], finishes: Sequence[Finish]) -> dict[str, Any]:
        """Returns the whole answer at once."""
        choices = []
        for index, (text, finish) in enumerate(zip(texts, finishes, strict=True)):
            content: dict[str, Any]
            if self._kind == "chat":
                content = {"message": {"role": "assistant", "content": text, "refusal": None}}
            else:
                content = {"text": text}
            choices.append({"index": index, **content, "logprobs": None, "finish_reason": finish})
        return {**self._head(""), "choices": choices, "usage": self.usage(), "metrics": self._metrics()}

    def first(self, index: int) -> dict[str, Any] | None:
        """Returns the chunk before all text, or None: a chat's names the role."""
        return self._chunk(index, {"role": "assistant", "content": ""}, None) if self._kind == "chat" else None

    def text(self, index: int, text: str) -> dict[str, Any]:
        """Returns a chunk of a choice's text."""
        return self._chunk(index, {"content": text} if self._kind == "chat" else text, None)

    def finish(self, index: int, finish: Finish, last: bool) -> dict[str, Any]:
        """Returns the end of a choice. The last chunk of a stream carries figures for `vllm bench serve`."""
        chunk = self._chunk(index, {} if self._kind == "chat" else "", finish)
        return chunk | {"metrics": self._metrics()} if last and not self._include_usage else chunk

    def last(self) -> dict[str, Any] | None:
        """Returns the chunk with the usage, or None if the client does not want it."""
        if not self._include_usage:
            return None
        return {**self._head(".chunk"), "choices": [], "usage": self.usage(), "metrics": self._metrics()}

    def usage(self) -> dict[str, Any]:
        """Counts tokens: those of each prompt once, however many samples it has, and those of all choices."""
        prompt = sum(len(request.samples[0].prompt.token_ids) for request in self._requests)
        output = sum(len(stream.sample.tokens) for stream in self._streams)
        cached = sum(max(sample.stages.cached_tokens for sample in request.samples) for request in self._requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _chunk(self, index: int, content: Any, finish: Finish | None) -> dict[str, Any]:
        name = "delta" if self._kind == "chat" else "text"
        choice = {"index": index, name: content, "logprobs": None, "finish_reason": finish}
        return {**self._head(".chunk"), "choices": [choice]} | ({"usage": None} if self._include_usage else {})

    def _head(self, suffix: str) -> dict[str, Any]:
        # A chunk of a completion is called a completion.
        return {"object": _OBJECTS[self._kind] + (suffix if self._kind == "chat" else ""), **self._shared}

    def _metrics(self) -> dict[str, float]:
        now = time.monotonic()
        return {
            "queue_time_ms": round(max(stream.sample.stages.queue_ms for stream in self._streams), 3),
            "time_to_first_token_ms": round(min(stream.timings(now).ttft_ms for stream in self._streams), 3),
        }
