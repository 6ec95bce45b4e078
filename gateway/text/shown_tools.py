"""Finds out what a chat template shows of tools: whether prompts name them, and how it writes earlier calls.

Only the template defines how a model writes calls: it writes earlier calls like the model. So a chat with two calls is
rendered, or with one call if the template allows no more.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.errors import APIError
from gateway.text.chat import Chat

PROBE_TOOL_NAME = "look_up_weather"
QUESTION, ANSWER, RESULT = "Is it raining?", "ZZZ", "Rain."
PROBE_ARGUMENTS: tuple[Mapping[str, Any], ...] = ({"place": "Oslo", "days": 3}, {"place": "Lima"})  # of each call
PROBE_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "description": "where"},
        "days": {"type": "integer", "description": "how many"},
    },
    "required": ["place"],
}
PROBE_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {"name": PROBE_TOOL_NAME, "description": "Tells the weather.", "parameters": PROBE_PARAMETERS},
}


class ShownCalls(NamedTuple):
    """How a template writes calls. Each text begins at or before the first call, and contains all of them."""

    arguments: Sequence[Mapping[str, Any]]  # of each call
    texts: Sequence[str]


class ShownTools(NamedTuple):
    """What a chat template shows of tools."""

    source: str
    takes: bool  # prompts name the tools
    calls: ShownCalls | None  # None: the template ignores or refuses calls


NOTHING_SHOWN = ShownTools("", False, None)


def shown_tools(source: str, render: Callable[[Chat], str]) -> ShownTools:
    """Returns what a template shows. `render` raises `APIError` if the template refuses a chat."""
    question: dict[str, Any] = {"role": "user", "content": QUESTION}
    prompt = _rendered(render, [question], [PROBE_TOOL])
    takes = prompt is not None and PROBE_TOOL_NAME in prompt
    plain = _rendered(render, [question, {"role": "assistant", "content": ANSWER}], [PROBE_TOOL]) or ""
    for number in range(len(PROBE_ARGUMENTS), 0, -1):
        calls = [_call(place, arguments) for place, arguments in enumerate(PROBE_ARGUMENTS[:number])]
        said = {"role": "assistant", "content": None, "tool_calls": calls}
        results = [
            {"role": "tool", "content": RESULT, "name": PROBE_TOOL_NAME, "tool_call_id": call["id"]} for call in calls
        ]
        for messages in ([question, said, *results], [question, said]):
            whole = _rendered(render, messages, [PROBE_TOOL])
            if whole is None or PROBE_ARGUMENTS[number - 1]["place"] not in whole:
                continue
            behind = whole.rpartition(QUESTION)[2]
            return ShownTools(
                source, takes, ShownCalls(PROBE_ARGUMENTS[:number], (_behind_common(whole, plain), behind))
            )
    return ShownTools(source, takes, None)


def _behind_common(text: str, other: str) -> str:
    pairs = enumerate(zip(text, other, strict=False))
    return text[next((place for place, (one, two) in pairs if one != two), len(other)) :]


def _call(place: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": f"probe000{place}", "type": "function", "function": {"name": PROBE_TOOL_NAME, "arguments": arguments}}


def _rendered(render: Callable[[Chat], str], messages: list[dict[str, Any]], tools: list[Any]) -> str | None:
    try:
        return render(Chat(messages, tools, answer=False))
    except APIError:
        return None
