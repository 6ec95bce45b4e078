"""Lists requests to Anthropic's API, as its package and agents send them."""

from tests.e2e.asked.asked import Asked, Got
from tests.e2e.asked.bodies import ASK, FUNCTION, HELLO, MODEL, WEATHER, message

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
]
