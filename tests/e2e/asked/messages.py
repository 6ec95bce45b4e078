"""Lists requests to Anthropic's API, as its package and agents send them."""

from tests.e2e.asked.asked import Asked, Got, anything
from tests.e2e.asked.bodies import ASK, CACHED, FUNCTION, HELLO, MODEL, WEATHER, message

CLAUDE_TOOL = {"name": "get_weather", "description": FUNCTION["description"], "input_schema": WEATHER}


def has_block(got: Got, kind: str) -> bool:
    return kind in [one["type"] for one in got.whole["content"]]


MESSAGES: list[Asked] = [
    message("a message", lambda got: has_block(got, "text") and got.whole["stop_reason"] in ("end_turn", "max_tokens")),
    message(
        "a message, streamed",
        lambda got: got.types[0] == "message_start" and got.types[-2:] == ["message_delta", "message_stop"],
        stream=True,
    ),
    message(
        "a system of blocks",
        messages=[{"role": "user", "content": [CACHED]}],
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
        metadata={"user_id": "u"},
    ),
    message(
        "a tool of a message",
        lambda got: got.whole["stop_reason"] == "tool_use" and has_block(got, "tool_use"),
        ASK,
        tools=[CLAUDE_TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_tokens=80,
    ),
    message(
        "a tool of a message, streamed",
        lambda got: any(one.get("delta", {}).get("type") == "input_json_delta" for one in got.events),
        ASK,
        tools=[CLAUDE_TOOL],
        tool_choice={"type": "tool", "name": "get_weather"},
        stream=True,
        max_tokens=80,
    ),
    message(
        "Claude Code",
        lambda got: got.types[-1] == "message_stop",
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>x</system-reminder>"},
                    {"type": "text", "text": "Hello!", "cache_control": {"type": "ephemeral"}},
                ],
            }
        ],
        system=[
            {"type": "text", "text": "You are an agent."},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        tools=[{**CLAUDE_TOOL, "cache_control": {"type": "ephemeral"}}],
        metadata={"user_id": "user_1_session_2"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        temperature=1,
        stream=True,
        max_tokens=2000,
        headers={
            "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
            "x-app": "cli",
            "authorization": "Bearer k",
        },
    ),
    message(
        "a tool's result",
        anything,
        [
            *ASK,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "unsigned"},
                    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [{"type": "text", "text": "Sunny"}],
                        "is_error": False,
                        "cache_control": {"type": "ephemeral"},
                    }
                ],
            },
        ],
        tools=[CLAUDE_TOOL],
    ),
    Asked(
        "count of a message",
        "/v1/messages/count_tokens?beta=true",
        {
            "model": MODEL,
            "messages": HELLO,
            "system": "Be brief.",
            "tools": [CLAUDE_TOOL],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
        lambda got: got.whole["input_tokens"] > 5,
    ),
    message(
        "nothing in every field of a message",
        system=[],
        tools=[],
        stop_sequences=[],
        top_p=1.0,
        temperature=0,
        mcp_servers=[],
        container=None,
        thinking=None,
        tool_choice=None,
    ),
    message(
        "a tool of a type",
        messages=ASK,
        tools=[{"type": "custom", **CLAUDE_TOOL, "eager_input_streaming": True}],
        tool_choice={"type": "auto"},
        stream=True,
    ),
    message(
        "an edited context",
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
    ),
]
