"""What bodies become: types of their own, in which every field has its bounds."""

from typing import Any

import pytest

from gateway.errors import APIError
from gateway.openai.bodies.nesting import MAX_NESTING_LEVELS, is_too_deep
from gateway.openai.bodies.parsing import chat_request, parse_chat

USER = {"role": "user", "content": "Hi!"}


def refusal(**fields: Any) -> APIError:
    with pytest.raises(APIError) as caught:
        chat_request({"messages": [USER], **fields})
    return caught.value


def test_labels_and_fields_for_other_servers_change_nothing() -> None:
    marked = {"role": "user", "content": [{"type": "text", "text": "Hi!", "cache_control": {"type": "ephemeral"}}]}
    body = chat_request({"messages": [{**marked, "mood": 1}], "user": "u", "store": True, "service_tier": "flex"})
    assert [message.for_template() for message in body.messages] == [USER]


def test_a_conversation_with_calls_is_what_templates_take() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    said = [
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
        {"role": "developer", "content": "Be short."},
    ]
    asked, answered, told = (message.for_template() for message in chat_request({"messages": said}).messages)
    assert asked["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Oslo"}}
    assert asked["content"] is None and asked["reasoning_content"] == asked["reasoning"] == "Hm."
    assert answered == {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    assert told == {"role": "system", "content": "Be short."}


def test_legacy_calls_are_calls() -> None:
    said = [
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{broken"}},
        {"role": "function", "name": "weather", "content": "rain"},
    ]
    asked, answered = (message.for_template() for message in chat_request({"messages": said}).messages)
    assert asked["tool_calls"] == [{"type": "function", "function": {"name": "weather", "arguments": "{broken"}}]
    assert answered["role"] == "tool"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_parts_that_are_no_text_are_refused_by_name(kind: str) -> None:
    error = refusal(messages=[{"role": "user", "content": [{"type": kind, kind: {}}]}])
    assert error.param == "messages[0].content[0].type" and kind in error.message


def test_depth_is_bounded_everywhere() -> None:
    value: Any = {}
    for _ in range(MAX_NESTING_LEVELS - 1):
        value = {"a": 1, "b": value}
    assert not is_too_deep(value) and is_too_deep([value]) and is_too_deep({"a": value})
    deep = '{"a": ' * 100 + "1" + "}" * 100
    call = {"type": "function", "function": {"name": "f", "arguments": deep}}
    body = chat_request({"messages": [{"role": "assistant", "tool_calls": [call]}]})
    assert body.messages[0].for_template()["tool_calls"][0]["function"]["arguments"] == deep
    with pytest.raises(APIError, match="64 levels"):
        parse_chat(f'{{"messages": {deep}}}'.encode())
