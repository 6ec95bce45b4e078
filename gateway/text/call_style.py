"""Finds out how a chat template wants the calls of earlier messages, in which models' templates differ in four ways.

Most templates take arguments as objects; some take JSON strings, which they concatenate with other text. Most take no
content (None) beside calls; some need an empty string, which they concatenate as well. Mistral's templates refuse ids
that are not nine letters and digits. Some templates ignore calls: for them, a call is a line of JSON in the message's
content.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway.errors import APIError
from gateway.text.chat import Chat

PROBE_NAME, PROBE_VALUE = "probe", "found"  # of the call that probes a template


class CallStyle(NamedTuple):
    """How messages with calls are written for one template."""

    content: str | None  # content of a message without text
    as_text: bool  # whether arguments are JSON strings
    short_ids: bool = False  # whether ids of calls have nine characters
    in_content: bool = False  # whether calls are lines of the content

    def written(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a message in this style."""
        if self.short_ids and "tool_call_id" in message:
            return {**message, "tool_call_id": _short(message["tool_call_id"])}
        if "tool_calls" not in message:
            return dict(message)
        if self.in_content:
            return self._with_calls_as_lines(message)
        content = message["content"] if message["content"] is not None else self.content
        return {**message, "content": content, "tool_calls": [self._call(call) for call in message["tool_calls"]]}

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = function["arguments"]
        if self.as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        ids = {"id": _short(call["id"])} if self.short_ids and "id" in call else {}
        return {**call, **ids, "function": {**function, "arguments": arguments}}

    def _with_calls_as_lines(self, message: Mapping[str, Any]) -> dict[str, Any]:
        functions = [call["function"] for call in message["tool_calls"]]
        calls = [{"name": function["name"], "arguments": function["arguments"]} for function in functions]
        lines = [message["content"] or "", *(json.dumps(call, ensure_ascii=False) for call in calls)]
        rest = {name: value for name, value in message.items() if name != "tool_calls"}
        return {**rest, "content": "\n".join(filter(None, lines))}


def _short(id: str) -> str:
    """Returns an id of nine letters and digits: the id itself if it has this form, else a hash."""
    return id if len(id) == 9 and id.isalnum() else hashlib.sha256(id.encode()).hexdigest()[:9]


CALL_STYLES = tuple(
    CallStyle(content, as_text, short_ids)
    for short_ids in (False, True)
    for as_text in (False, True)
    for content in (None, "")
)
CALLS_IN_CONTENT = CallStyle("", False, in_content=True)


def call_style(render: Callable[[Chat], str]) -> CallStyle:
    """Returns the first of `CALL_STYLES`, or else `CALLS_IN_CONTENT`, in which a template shows a call unchanged.

    If none does, returns the first style that the template does not refuse, or the first of all.
    """
    call = {
        "id": "call_of_a_probe",
        "type": "function",
        "function": {"name": PROBE_NAME, "arguments": {"value": PROBE_VALUE}},
    }
    question = {"role": "user", "content": "a"}
    said: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "b", "name": PROBE_NAME, "tool_call_id": call["id"]}
    accepted: list[CallStyle] = []
    for behind in ([result], []):  # some templates refuse every result
        for style in (*CALL_STYLES, CALLS_IN_CONTENT):
            try:
                text = render(Chat([question, style.written(said), *behind]))
            except APIError:
                continue
            if PROBE_NAME in text and PROBE_VALUE in text and "None" not in text and '\\"' not in text:
                return style
            accepted.append(style)
    return (accepted or CALL_STYLES)[0]
