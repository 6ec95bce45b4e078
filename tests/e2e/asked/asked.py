"""Describes requests as clients send them, and their answers, whole or as the events of a stream."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages?beta=true"


@dataclass(frozen=True)
class Got:
    whole: Any
    events: list[Any]

    @property
    def choices(self) -> list[Any]:
        """Returns the choices of a chat or completion, those of a stream put together."""
        if not self.events:
            return list(self.whole["choices"])
        found: dict[int, dict[str, Any]] = {}
        for one in [choice for event in self.events for choice in event["choices"]]:
            said = found.setdefault(one["index"], {"text": "", "calls": {}, "finish_reason": None})
            delta = one.get("delta", one)
            said["text"] += delta.get("content") or delta.get("text") or ""
            for call in delta.get("tool_calls") or ():
                named = said["calls"].setdefault(call["index"], {"name": "", "arguments": ""})
                named["name"] += call["function"].get("name") or ""
                named["arguments"] += call["function"]["arguments"]
            said["finish_reason"] = one["finish_reason"] or said["finish_reason"]
        return [found[index] for index in sorted(found)]

    @property
    def texts(self) -> list[str]:
        return [one["text"] if "text" in one else one["message"]["content"] or "" for one in self.choices]

    @property
    def calls(self) -> list[Any]:
        first = self.choices[0]
        if "calls" in first:
            called = list(first["calls"].values())
        else:
            called = [one["function"] for one in first["message"].get("tool_calls") or ()]
        return [(one["name"], json.loads(one["arguments"])) for one in called]

    @property
    def usage(self) -> Any:
        return (self.events[-1] if self.events else self.whole)["usage"]

    @property
    def types(self) -> list[str]:
        return [one["type"] for one in self.events]

    @property
    def ends(self) -> list[str]:
        return [one["finish_reason"] for one in self.choices]


Holds = Callable[[Got], object]


def anything(got: Got) -> bool:
    """Asks no more of an answer than its shape."""
    return True


@dataclass(frozen=True)
class Asked:
    name: str
    path: str
    body: Any
    holds: Holds = anything
    status: int = 200
    param: str | None = None  # the field that a refusal names
    headers: dict[str, str] = field(default_factory=dict)


def ends_with_usage(got: Got) -> bool:
    """Whether a stream's last event, and no other, has the usage, and has no choices."""
    *others, last = got.events
    return last["choices"] == [] and last["usage"]["total_tokens"] > 0 and not any(one["usage"] for one in others)


def counts_up(got: Got) -> bool:
    """Whether each event has the usage so far. A slow machine may put all tokens of an answer into one event."""
    made = [one["usage"]["completion_tokens"] for one in got.events]
    sums = [one["usage"]["total_tokens"] - one["usage"]["prompt_tokens"] for one in got.events]
    deltas = [choice.get("delta", choice) for event in got.events for choice in event["choices"]]
    texts = [delta for delta in deltas if delta.get("content") or delta.get("text")]
    return made == sorted(made) == sums and (made[-1] > made[0] if len(texts) > 1 else made[-1] > 0)
