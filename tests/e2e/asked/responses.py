"""Lists requests to the Responses API, as OpenAI's Agents SDK, Codex and the tests of vLLM send them."""

from typing import Any

from tests.e2e.asked.asked import Asked, anything
from tests.e2e.asked.bodies import ASK, FUNCTION, HELLO, response

FLAT = {"type": "function", **FUNCTION, "strict": True}
NULLS: dict[str, Any] = dict.fromkeys(
    [
        "temperature",
        "top_p",
        "previous_response_id",
        "reasoning",
        "text",
        "include",
        "metadata",
        "tools",
        "tool_choice",
        "truncation",
        "user",
        "store",
        "stream",
        "background",
        "prompt",
        "conversation",
        "instructions",
    ]
)
RESPONSES: list[Asked] = [
    response("a response", lambda got: got.whole["output"][-1]["content"][0]["text"]),
    response(
        "a response, streamed",
        lambda got: (
            got.types[0] == "response.created" and got.types[-1] in ("response.completed", "response.incomplete")
        ),
        stream=True,
    ),
    response(
        "Agents SDK, a response",
        lambda got: got.whole["status"] in ("completed", "incomplete"),
        [{"role": "user", "content": "Hello!"}],
        include=[],
        instructions="Be brief.",
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=False,
        store=False,
        truncation="disabled",
        metadata={},
        text={"format": {"type": "text"}, "verbosity": None},
        reasoning={"effort": None, "summary": None},
    ),
    response(
        "a function",
        lambda got: got.whole["output"][-1]["name"] == "get_weather",
        ASK,
        tools=[FLAT],
        tool_choice="required",
        max_output_tokens=80,
    ),
    response(
        "a function, named and streamed",
        lambda got: "response.function_call_arguments.done" in got.types,
        ASK,
        tools=[FLAT],
        tool_choice={"type": "function", "name": "get_weather"},
        stream=True,
        max_output_tokens=80,
    ),
    response(
        "a function's result",
        anything,
        [
            *ASK,
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": "get_weather",
                "arguments": "{}",
                "status": "completed",
            },
            {"type": "function_call_output", "call_id": "call_1", "output": "Sunny"},
        ],
        tools=[FLAT],
    ),
    response(
        "Codex",
        anything,
        [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]},
        ],
        stream=True,
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        tool_choice="auto",
        parallel_tool_calls=True,
        tools=[FLAT],
        reasoning=None,
        instructions="Be brief.",
    ),
    response(
        "an earlier answer, as it came",
        given=[
            *HELLO,
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Hi!", "annotations": [], "logprobs": []}],
            },
            {
                "id": "rs_1",
                "type": "reasoning",
                "summary": [],
                "content": None,
                "encrypted_content": None,
                "status": None,
            },
            *HELLO,
        ],
    ),
    response("null in every field of a response", **NULLS),
]
