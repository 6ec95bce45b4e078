"""Lists chats with tools, as OpenAI's and others' packages send them."""

from tests.e2e.asked.asked import Asked, anything
from tests.e2e.asked.bodies import ASK, CALL, NAMED, TOOL, USAGE, called, chat

CALLS_ONCE = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 60}

TOOLS: list[Asked] = [
    chat("a tool, auto", lambda got: got.calls or got.texts[0], ASK, tools=[TOOL], max_tokens=60),
    chat("a tool, required", called, ASK, **CALLS_ONCE),
    chat("a tool, required, streamed", called, ASK, **CALLS_ONCE, stream=True, stream_options=USAGE),
    chat(
        "a tool, named, streamed",
        lambda got: got.calls[0][0] == "get_weather" and got.texts == [""],
        ASK,
        tools=[TOOL],
        tool_choice=NAMED,
        stream=True,
        max_tokens=60,
    ),
    chat("no tools", tools=[]),
    chat(
        "a tool without parameters",
        lambda got: got.calls == [("now", {})],
        **CALLS_ONCE | {"tools": [{"type": "function", "function": {"name": "now"}}]},
    ),
    chat(
        "a tool of an unknown type of value",
        messages=ASK,
        tools=[
            {
                "type": "function",
                "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "int"}}}},
            }
        ],
    ),
    chat(
        "a call back as the SDK dumps it",
        anything,
        [
            *ASK,
            {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "annotations": [],
                "audio": None,
                "function_call": None,
                "reasoning_content": None,
                "tool_calls": [{**CALL, "index": 0, "function": {"name": "get_weather", "arguments": ""}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": ""},
        ],
        tools=[TOOL],
    ),
    chat(
        "a tool of nulls",
        messages=ASK,
        tools=[
            {"type": "function", "function": {"name": "f", "description": None, "parameters": None, "strict": None}}
        ],
    ),
    chat("a choice of none without tools", tool_choice="none"),
    chat("the usual choice without tools", tool_choice="auto", parallel_tool_calls=True),
]
