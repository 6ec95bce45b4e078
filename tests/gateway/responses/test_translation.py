"""A response's body becomes the chat that says the same, or is refused with the name of what cannot be said."""

import json
from typing import Any

import msgspec
import pytest

from gateway.errors import APIError
from gateway.openai.bodies.schemas import ChatRequest
from gateway.responses.bodies import parse_response
from gateway.responses.items import Item
from gateway.responses.translation import chat_of, items_of

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "Tells it.",
    "parameters": {"type": "object"},
    "strict": True,
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Bonn"}'}
RESULT: dict[str, Any] = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}


def translated(**body: Any) -> ChatRequest:
    parsed = parse_response(json.dumps({"input": "Hi!", **body}).encode())
    return chat_of(parsed, items_of(parsed))


def chat(**body: Any) -> dict[str, Any]:
    """The fields of the chat that differ from their defaults."""
    found = translated(**body)
    return {
        name: msgspec.to_builtins(getattr(found, name))
        for name in found.__struct_fields__
        if getattr(found, name) is not None
    }


def said(*items: dict[str, Any], **body: Any) -> list[dict[str, Any]]:
    """The messages as the chat's template sees them."""
    return [message.for_template() for message in translated(input=items, **body).messages]


def test_the_least_body() -> None:
    fields = chat()
    assert [(message["role"], message["content"]) for message in fields.pop("messages")] == [("user", "Hi!")]
    assert fields == {}


def test_sampling_and_labels() -> None:
    wanted = {"temperature": 0.5, "top_p": 0.25, "stream": True, "user": "me", "model": "demo"}
    fields = chat(**wanted, max_output_tokens=7, metadata={"a": "b"}, prompt_cache_key="x", service_tier="flex")
    assert fields.items() >= {**wanted, "max_completion_tokens": 7}.items()


def test_instructions_come_first() -> None:
    assert said({"role": "user", "content": "Hi!"}, instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi!"},
    ]


def test_messages_in_all_their_forms() -> None:
    parts = [{"type": "input_text", "text": "One."}, {"type": "input_text", "text": "Two.", "cache_control": {}}]
    answer: dict[str, Any] = {"type": "output_text", "text": "Three.", "annotations": [], "logprobs": None}
    refusal = {"type": "refusal", "refusal": "No."}
    assert said(
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": parts, "status": "completed"},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [answer, refusal], "phase": "final_answer"},
        {"role": "user", "content": "And?"},
    ) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One.\nTwo."},
        {"role": "assistant", "content": "Three.\nNo."},
        {"role": "user", "content": "And?"},
    ]


def test_what_the_model_did_in_a_turn_is_one_message() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    words = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I ask."}]}
    second = {**CALL, "call_id": "call_2", "arguments": "{}"}
    results = [RESULT, {**RESULT, "call_id": "call_2", "output": [{"type": "input_text", "text": "warm"}]}]
    turns = said({"role": "user", "content": "Weather?"}, thought, words, CALL, second, *results, thought, words)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool", "tool", "assistant"]
    assert turns[1]["content"] == "I ask." and turns[1]["reasoning_content"] == "Hm."
    assert [(call["id"], call["function"]["arguments"]) for call in turns[1]["tool_calls"]] == [
        ("call_1", {"city": "Bonn"}),
        ("call_2", {}),
    ]
    assert [(turn["tool_call_id"], turn["content"]) for turn in turns[2:4]] == [("call_1", "sunny"), ("call_2", "warm")]
    assert turns[4] == {"role": "assistant", "content": "I ask.", "reasoning_content": "Hm.", "reasoning": "Hm."}


def test_words_behind_a_call_are_another_message() -> None:
    turns = said(CALL, {"role": "assistant", "content": "Done."})
    assert [(turn["content"], "tool_calls" in turn) for turn in turns] == [(None, True), ("Done.", False)]


def test_a_summary_stands_for_thoughts_that_only_others_can_read() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    (turn,) = said({**thought, "encrypted_content": "gAAA"})
    assert turn["reasoning_content"] == "Hm."


def test_tools() -> None:
    fields = chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    function = {"name": "weather", "description": "Tells it.", "parameters": {"type": "object"}, "strict": True}
    assert fields["tools"] == [{"type": "function", "function": function}]
    assert fields["tool_choice"] == "required" and fields["parallel_tool_calls"] is False
    named = chat(tools=[TOOL], tool_choice={"type": "function", "name": "weather"})
    assert named["tool_choice"] == {"type": "function", "function": {"name": "weather"}}


def test_the_form_of_the_answer() -> None:
    assert "response_format" not in chat(text={"format": {"type": "text"}})
    assert chat(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    wanted = {"type": "json_schema", "name": "city", "schema": {"type": "object"}, "strict": True}
    found = chat(text={"format": wanted})["response_format"]
    assert (found["json_schema"]["name"], found["json_schema"]["schema"]) == ("city", {"type": "object"})


def test_reasoning() -> None:
    assert chat(reasoning={"effort": "low", "summary": "auto"})["reasoning_effort"] == "low"


@pytest.mark.parametrize("asked", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 3}])
def test_log_probabilities(asked: dict[str, Any]) -> None:
    assert chat(**asked)["logprobs"] is True and chat(**asked).get("top_logprobs") == asked.get("top_logprobs")
    assert "logprobs" not in chat(include=["reasoning.encrypted_content"])


def test_what_changes_nothing_is_accepted() -> None:
    chat(background=False, truncation="disabled", conversation=None, prompt=None, store=False, max_tool_calls=3)


def test_a_verbosity_is_a_label() -> None:
    assert chat(text={"verbosity": "high"}) == chat()


def test_allowed_functions() -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": TOOL["name"]}]}
    named = [{"type": "function", "function": {"name": TOOL["name"]}}]
    expected = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}}
    assert chat(tools=[TOOL], tool_choice=allowed)["tool_choice"] == expected


def test_stored_items_come_back_as_they_were() -> None:
    items = items_of(parse_response(json.dumps({"input": [{"role": "user", "content": "Hi!"}, CALL, RESULT]}).encode()))
    assert msgspec.json.decode(msgspec.json.encode(items), type=list[Item]) == items


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "no input": ({"input": None}, "invalid_type", "input"),
    "nothing said": ({"input": []}, "empty_prompt", "input"),
    "unknown": ({"max_tokens": 5}, "unknown_parameter", "max_tokens"),
    "no room": ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
    "in the background": ({"background": True}, "unsupported_parameter", "background"),
    "a conversation": ({"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
    "a prompt of theirs": ({"prompt": {"id": "1"}}, "unsupported_parameter", "prompt"),
    "a tool of theirs": ({"tools": [TOOL, {"type": "web_search"}]}, "unsupported_parameter", "tools[1].type"),
    "a choice of theirs": ({"tool_choice": {"type": "web_search"}}, "unsupported_parameter", "tool_choice.type"),
    "a reference": ({"input": [{"type": "item_reference", "id": "x"}]}, "invalid_value", "input[0].type"),
    "an image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "unsupported_parameter",
        "input[0].content[0].type",
    ),
    "an image from a tool": (
        {"input": [{**RESULT, "output": [{"type": "input_image"}]}]},
        "unsupported_parameter",
        "input[0].output[0].type",
    ),
    "a part without a type": (
        {"input": [{"role": "user", "content": [{"text": "a"}]}]},
        "missing_required_parameter",
        "input[0].content[0].type",
    ),
    "an item without a type": ({"input": [{"content": "a"}]}, "missing_required_parameter", "input[0].type"),
    "an unknown role": ({"input": [{"role": "king", "content": "a"}]}, "invalid_value", "input[0].role"),
    "too many metadata": ({"metadata": {str(n): "x" for n in range(17)}}, "invalid_value", "metadata"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    fields, code, param = WRONG[name]
    with pytest.raises(APIError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param), caught.value.message
