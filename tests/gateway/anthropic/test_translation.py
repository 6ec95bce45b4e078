"""A body of Anthropic's becomes the chat that says the same, or is refused with the name of what cannot be said."""

import json
from typing import Any

import msgspec
import pytest

from gateway.anthropic.bodies import parse_count, parse_messages
from gateway.anthropic.translation import chat_of
from gateway.errors import APIError

HI: dict[str, Any] = {"model": "demo", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi!"}]}
TOOL = {
    "name": "weather",
    "description": "Tells it.",
    "input_schema": {"type": "object"},
    "cache_control": {"type": "x"},
}


def chat(**more: Any) -> dict[str, Any]:
    """The fields of the chat that differ from their defaults."""
    body = chat_of(parse_messages(json.dumps({**HI, **more}).encode()))
    found: dict[str, Any] = {
        name: msgspec.to_builtins(getattr(body, name))
        for name in body.__struct_fields__
        if getattr(body, name) is not None
    }
    return found


def said(*messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """The messages as the chat's template sees them."""
    body = chat_of(parse_messages(json.dumps({**HI, **more, "messages": messages}).encode()))
    return [message.for_template() for message in body.messages]


def text(*texts: str, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": one, **more} for one in texts]


def test_the_least_body() -> None:
    fields = chat()
    assert fields.pop("messages")[0]["content"] == "Hi!"
    assert fields == {"model": "demo", "max_completion_tokens": 5}


def test_sampling() -> None:
    fields = chat(temperature=0.5, top_p=0.25, top_k=7, stop_sequences=["END"], stream=True, metadata={"user_id": "me"})
    wanted = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "stop": ["END"], "stream": True, "user": "me"}
    assert fields.items() >= wanted.items()
    assert chat(top_p=0)["top_k"] == 1 and "top_p" not in chat(top_p=0)


@pytest.mark.parametrize(
    "system", ["Be brief.", text("Be brief."), text("Be brief.", cache_control={"type": "ephemeral"})]
)
def test_the_system_prompt_comes_first(system: Any) -> None:
    assert said(*HI["messages"], system=system) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi!"},
    ]


def test_blocks_of_a_system_prompt_are_lines() -> None:
    assert said(*HI["messages"], system=text("Be brief.", "Be kind."))[0]["content"] == "Be brief.\nBe kind."


def test_a_conversation_with_tools() -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bonn"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": text("sunny", "warm")}
    again = {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True}
    assert said(
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [thought, *text("I ask."), use, {**use, "id": "toolu_2"}]},
        {"role": "user", "content": [result, again, *text("And?")]},
    ) == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I ask.",
            "tool_calls": [
                {"id": id, "type": "function", "function": {"name": "weather", "arguments": {"city": "Bonn"}}}
                for id in ("toolu_1", "toolu_2")
            ],
            "reasoning_content": "Hm.",
            "reasoning": "Hm.",
        },
        {"role": "tool", "content": "sunny\nwarm", "tool_call_id": "toolu_1"},
        {"role": "tool", "content": "error", "tool_call_id": "toolu_2"},
        {"role": "user", "content": "And?"},
    ]


def test_neighbours_of_one_role_are_one_turn() -> None:
    turns = said(
        {"role": "user", "content": "One."},
        {"role": "user", "content": text("Two.")},
        {"role": "assistant", "content": "Three."},
        {"role": "assistant", "content": text("Four.")},
        {"role": "user", "content": "Five?"},
    )
    assert [(turn["role"], turn["content"]) for turn in turns] == [
        ("user", "One.\nTwo."),
        ("assistant", "Three.\nFour."),
        ("user", "Five?"),
    ]


def test_tools() -> None:
    fields = chat(tools=[TOOL, {**TOOL, "name": "now", "type": "custom"}])
    function = {"name": "weather", "description": "Tells it.", "parameters": {"type": "object"}, "strict": None}
    assert fields["tools"][0] == {"type": "function", "function": function}
    assert [tool["function"]["name"] for tool in fields["tools"]] == ["weather", "now"]
    assert "tool_choice" not in fields


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, None),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_the_choice_of_a_tool(choice: dict[str, Any], wanted: Any) -> None:
    assert chat(tools=[TOOL], tool_choice=choice).get("tool_choice") == wanted
    alone = chat(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True})
    assert alone["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    "field",
    [
        {"output_config": {"format": ...}},
        {"output_format": ...},
        {"output_config": {"format": ...}, "output_format": ...},
    ],
)
def test_json_by_a_schema(field: dict[str, Any]) -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    fields = chat(**json.loads(json.dumps(field, default=lambda _: wanted)))
    assert fields["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("thinking", "wanted"),
    [
        ({"type": "enabled", "budget_tokens": 2000}, {"enable_thinking": True}),
        ({"type": "adaptive"}, {"enable_thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        (None, None),
    ],
)
def test_thinking(thinking: Any, wanted: Any) -> None:
    assert chat(thinking=thinking).get("chat_template_kwargs") == wanted


def test_effort() -> None:
    assert chat(output_config={"effort": "low"})["reasoning_effort"] == "low"
    assert chat(output_config={"effort": "max"})["reasoning_effort"] == "xhigh"


def test_what_clients_send_beside_is_no_error() -> None:
    chat(
        cache_control={"type": "ephemeral"},
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        metadata={"user_id": "x" * 4000},
        service_tier="auto",
        mcp_servers=[],
        messages=[{"role": "user", "content": text("Hi!", cache_control={"type": "ephemeral"}, citations=None)}],
    )


def test_a_count_needs_no_limit() -> None:
    body = {"model": "demo", "messages": HI["messages"]}
    assert chat_of(parse_count(json.dumps(body).encode())).messages[0].content == "Hi!"


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "no max_tokens": ({"max_tokens": None}, "invalid_type", "max_tokens"),
    "no room": ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    "hot": ({"temperature": 1.5}, "invalid_value", "temperature"),
    "unknown": ({"max_token": 5}, "unknown_parameter", "max_token"),
    "no messages": ({"messages": []}, "invalid_value", "messages"),
    "an image": (
        {"messages": [{"role": "user", "content": [*text("What?"), {"type": "image", "source": {}}]}]},
        "invalid_value",
        "messages[0].content[1].type",
    ),
    "an image from a tool": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}],
                }
            ]
        },
        "invalid_value",
        "messages[0].content[0].content[0].type",
    ),
    "a block without a type": (
        {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
        "missing_required_parameter",
        "messages[0].content[0].type",
    ),
    "a tool of theirs": (
        {"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]},
        "unsupported_parameter",
        "tools[1].type",
    ),
    "two forms": (
        {
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
            "output_format": {"type": "json_schema", "schema": {"type": "null"}},
        },
        "conflicting_parameters",
        "output_format",
    ),
    "a thread": ({"thread": {"type": "create"}}, "thread_unsupported_request", "thread"),
    "their servers": ({"mcp_servers": [{"type": "url"}]}, "invalid_value", "mcp_servers"),
    "a call by the user": (
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "a", "input": {}}]}]},
        "conflicting_parameters",
        "messages",
    ),
    "a result by the assistant": (
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1"}]},
                *HI["messages"],
            ]
        },
        "conflicting_parameters",
        "messages",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    fields, code, param = WRONG[name]
    with pytest.raises(APIError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param), caught.value.message
