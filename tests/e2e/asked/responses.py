"""Lists requests to the Responses API, as OpenAI's Agents SDK, Codex and the tests of vLLM send them."""

from typing import Any

from tests.e2e.asked.asked import Asked, anything
from tests.e2e.asked.bodies import ASK, FUNCTION, response

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
        "a function, named and streamed",
        lambda got: "response.function_call_arguments.done" in got.types,
        ASK,
        tools=[FLAT],
        tool_choice={"type": "function", "name": "get_weather"},
        stream=True,
        max_output_tokens=80,
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
    response("null in every field of a response", **NULLS),
]
