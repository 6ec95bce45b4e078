"""Finds out how a chat template wants the calls of earlier messages: templates of different models differ in two ways.

The arguments are objects for most and JSON texts for some, which put them between other texts. A message that has
nothing but calls has no content for most, and an empty one for some.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway.errors import APIError
from gateway.text.chat import Chat

NAME, VALUE = "probe", "found"  # of the call with which a template is tried


class CallStyle(NamedTuple):
    """Says how messages with calls are written for one template."""

    content: str | None  # of a message that has none
    as_text: bool  # arguments are JSON texts

    def written(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a message as the template wants it."""
        if "tool_calls" not in message:
            return dict(message)
        content = message["content"] if message["content"] is not None else self.content
        calls = [self._call(call) for call in message["tool_calls"]] if self.as_text else message["tool_calls"]
        return {**message, "content": content, "tool_calls": calls}

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = function["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**function, "arguments": arguments}}


STYLES = (CallStyle(None, False), CallStyle("", False), CallStyle(None, True), CallStyle("", True))


def call_style(render: Callable[[Chat], str]) -> CallStyle:
    """Returns the first of `STYLES` in which a template shows a call as it is; the first of all if it shows none."""
    call = {"id": "probe00000", "type": "function", "function": {"name": NAME, "arguments": {"value": VALUE}}}
    question = {"role": "user", "content": "a"}
    said: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "b", "name": NAME, "tool_call_id": call["id"]}
    for style in STYLES:
        try:
            text = render(Chat([question, style.written(said), result]))
        except APIError:
            continue
        if NAME in text and VALUE in text and "None" not in text and '\\"' not in text:
            return style
    return STYLES[0]
