"""Answers in OpenAI's shapes, whole and in chunks."""

import time
from collections.abc import Sequence
from typing import Any, Literal

from core.messages import Finish
from gateway.requests.request import Group

Kind = Literal["chat", "completion"]
_OBJECTS = {"chat": "chat.completion", "completion": "text_completion"}


class Answers:
    """Shapes of one answer. Its choices are the samples of `groups`, one group for each prompt, in order."""

    def __init__(self, kind: Kind, model: str, groups: Sequence[Group], include_usage: bool = False) -> None:
        self._kind = kind
        self._groups = groups
        self._streams = [stream for group in groups for stream in group.streams]
        self._include_usage = include_usage
        self._shared = {
            "id": f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{self.request}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,
        }

    @property
    def request(self) -> str:
        """The id of the (first) request, under which the records have it."""
        return self._groups[0].request

    def whole(self, texts: Sequence[str], finishes: Sequence[Finish]) -> dict[str, Any]:
        """The answer at once."""
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
        """The chunk before all text: a chat's names the role."""
        return self._chunk(index, {"role": "assistant", "content": ""}, None) if self._kind == "chat" else None

    def text(self, index: int, text: str) -> dict[str, Any]:
        """A chunk of text."""
        return self._chunk(index, {"content": text} if self._kind == "chat" else text, None)

    def finish(self, index: int, finish: Finish, last: bool) -> dict[str, Any]:
        """A choice's end. The last chunk of a stream carries figures for `vllm bench serve`."""
        chunk = self._chunk(index, {} if self._kind == "chat" else "", finish)
        return chunk | {"metrics": self._metrics()} if last and not self._include_usage else chunk

    def last(self) -> dict[str, Any] | None:
        """The chunk with the usage, if the client wants it."""
        if not self._include_usage:
            return None
        return {**self._head(".chunk"), "choices": [], "usage": self.usage(), "metrics": self._metrics()}

    def usage(self) -> dict[str, Any]:
        """Tokens: of each prompt once, however many samples it has, and of all choices."""
        prompt = sum(len(group.streams[0].request.prompt) for group in self._groups)
        output = sum(len(stream.request.tokens) for stream in self._streams)
        cached = sum(max(stream.request.stages.cached_tokens for stream in group.streams) for group in self._groups)
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
            "queue_time_ms": round(max(stream.request.stages.queue_ms for stream in self._streams), 3),
            "time_to_first_token_ms": round(min(stream.timings(now).ttft_ms for stream in self._streams), 3),
        }
