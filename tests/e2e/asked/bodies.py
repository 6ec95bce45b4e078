"""Writes the bodies of requests around what is special in each."""

import json
from typing import Any

from tests.e2e.asked.asked import CHAT, COMPLETION, MESSAGES, RESPONSES, Asked, Got, Holds, anything
from tests.e2e.conftest import DEMO

MODEL = DEMO.name
STORY = "Once upon a time"
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
HELLO = [{"role": "user", "content": "Hello!"}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
CACHED = {"type": "text", "text": "Hello!", "cache_control": {"type": "ephemeral"}}
USAGE = {"include_usage": True}
EACH = {"include_usage": True, "continuous_usage_stats": True}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "Tells the weather of a city.", "parameters": WEATHER}
TOOL = {"type": "function", "function": FUNCTION}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "Sunny"}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


def chat(name: str, holds: Holds = anything, messages: Any = HELLO, **more: Any) -> Asked:
    """Writes a chat. `without` names fields that it lacks; `status`, `param` and `headers` are those of `Asked`."""
    return _asked(name, CHAT, {"messages": messages, "max_tokens": 8, "temperature": 0}, holds, more)


def completion(name: str, holds: Holds = anything, prompt: Any = STORY, **more: Any) -> Asked:
    return _asked(name, COMPLETION, {"prompt": prompt, "max_tokens": 6, "temperature": 0}, holds, more)


def response(name: str, holds: Holds = anything, given: Any = "Hello!", **more: Any) -> Asked:
    return _asked(name, RESPONSES, {"input": given, "max_output_tokens": 16}, holds, more)


def message(name: str, holds: Holds = anything, messages: Any = HELLO, **more: Any) -> Asked:
    return _asked(name, MESSAGES, {"messages": messages, "max_tokens": 8}, holds, more)


def is_person(got: Got) -> bool:
    return set(json.loads(got.texts[0])) == {"name", "age"}


def called(got: Got) -> bool:
    ((name, arguments),) = got.calls
    return name == "get_weather" and set(arguments) == {"city", "unit"} and got.ends == ["tool_calls"]


def _asked(name: str, path: str, body: dict[str, Any], holds: Holds, more: dict[str, Any]) -> Asked:
    status, param, headers = more.pop("status", 200), more.pop("param", None), more.pop("headers", {})
    without = more.pop("without", ())
    body = {key: value for key, value in {"model": MODEL, **body, **more}.items() if key not in without}
    return Asked(name, path, body, holds, status, param, headers)
