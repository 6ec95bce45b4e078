"""Lists chats with tools, as OpenAI's and others' packages send them."""

from tests.e2e.asked.asked import Asked, anything
from tests.e2e.asked.bodies import ASK, CALL, FUNCTION, NAMED, TOOL, USAGE, called, chat

TOOLS: list[Asked] = [
    chat("a tool, auto", lambda got: got.calls or got.texts[0], ASK, tools=[TOOL], max_tokens=60),
    chat(
        "a tool, required", called, ASK, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=60
    ),
    chat(
        "a tool, named",
        lambda got: got.calls[0][0] == "get_weather",
        ASK,
        tools=[TOOL],
        tool_choice=NAMED,
        max_tokens=60,
    ),
    chat(
        "a tool, required, streamed",
        called,
        ASK,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        stream=True,
        stream_options=USAGE,
        max_tokens=60,
    ),
    chat(
        "a tool, named, streamed",
        lambda got: got.calls[0][0] == "get_weather" and got.texts == [""],
        ASK,
        tools=[TOOL],
        tool_choice=NAMED,
        stream=True,
        max_tokens=60,
    ),
    chat("no tool wanted", lambda got: got.texts[0], ASK, tools=[TOOL], tool_choice="none"),
    chat(
        "a named tool that is not there",
        status=400,
        param="tool_choice",
        messages=ASK,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "other"}},
    ),
    chat("a choice without tools", status=400, messages=ASK, tool_choice=NAMED),
    chat("an empty choice", messages=ASK, tools=[TOOL], tool_choice={}, status=400, param="tool_choice.type"),
    chat(
        "required, cut short",
        lambda got: got.ends == ["length"] and got.texts == [""] and not got.calls,
        ASK,
        tools=[TOOL],
        tool_choice="required",
        max_tokens=3,
    ),
    chat(
        "named, cut short in a stream",
        lambda got: got.ends == ["length"] and got.texts == [""] and not got.calls,
        ASK,
        tools=[TOOL],
        tool_choice=NAMED,
        max_tokens=5,
        stream=True,
    ),
    chat("tools null", tools=None, tool_choice=None, parallel_tool_calls=None, response_format=None, functions=None),
    chat("no tools", tools=[]),
    chat(
        "a tool without parameters",
        lambda got: got.calls == [("now", {})],
        tools=[{"type": "function", "function": {"name": "now"}}],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=40,
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
        "a call and its result",
        lambda got: got.texts[0],
        [
            *ASK,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Sunny"},
        ],
        tools=[TOOL],
    ),
    chat(
        "the same without tools",
        lambda got: got.texts[0],
        [
            *ASK,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {
                "role": "tool",
                "tool_call_id": "call_1",
                "name": "get_weather",
                "content": [{"type": "text", "text": "Sunny"}],
            },
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
        "functions of old",
        lambda got: got.choices[0]["message"]["function_call"]["name"] == "get_weather",
        ASK,
        functions=[FUNCTION],
        function_call={"name": "get_weather"},
        max_tokens=60,
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
    chat(
        "a schema with a keyword that cannot be kept to",
        lambda got: got.calls[0][0] == "f",
        messages=ASK,
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "parameters": {
                        "$schema": "http://json-schema.org/draft-07/schema#",
                        "type": "object",
                        "properties": {
                            "a": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 2}
                        },
                        "required": ["a"],
                    },
                },
            }
        ],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=120,
    ),
]
