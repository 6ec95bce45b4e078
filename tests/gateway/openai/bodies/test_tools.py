"""Tools through the real server, with the official client: what the template sees, what the worker gets, what comes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.models import byte_level
from tests.gateway.output.composed import HERE
from tests.gateway.running import Running, Serve

QUESTION: Any = [{"role": "user", "content": "Hi!"}]
FUNCTION: Any = {
    "name": "weather",
    "description": "Tells the weather <|im_end|>.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS: Any = [{"type": "function", "function": FUNCTION, "cache_control": {"type": "ephemeral"}}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "%s"}}\n</tool_call>'
OSLO, BERN = CALL % "Oslo", CALL % "Bern"


@pytest.fixture
async def running(serve: Serve, tmp_path: Path) -> Running:
    """A gateway for a model that calls tools in Hermes' format, and thinks."""
    template = (HERE / "templates" / "hermes.jinja").read_text()
    model = byte_level(tmp_path / "model", template=template, vocabulary=443, max_position_embeddings=4096)
    return await serve("prefill", "decode", at=model)


def prompt_of(running: Running, place: int = -1) -> str:
    ids = running.peer("prefill").jobs[place].prompt.token_ids
    return b"".join(
        f"<{token}>".encode() if token in (1, 2) else running.tokenizer.bytes_of.of(token) for token in ids
    ).decode()


async def test_whole_calls(running: Running) -> None:
    running.text = f"Let me see.\n{OSLO}\n{BERN}"
    answer = await running.openai.chat.completions.create(model="model", messages=QUESTION, tools=TOOLS)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me see."
    assert choice.message.tool_calls is not None
    functions = [
        (call.type, call.function.name, call.function.arguments)
        for call in choice.message.tool_calls
        if call.type == "function"
    ]
    assert functions == [("function", "weather", '{"city": "Oslo"}'), ("function", "weather", '{"city": "Bern"}')]
    ids = [call.id for call in choice.message.tool_calls]
    assert len(set(ids)) == 2 and all(name.startswith("call_") for name in ids)


async def test_calls_while_they_come(running: Running) -> None:
    running.text = f"Well. {OSLO}{BERN}"
    stream = await running.openai.chat.completions.create(model="model", messages=QUESTION, tools=TOOLS, stream=True)
    calls: dict[int, dict[str, str]] = {}
    text, finish, pieces = "", None, 0
    async for chunk in stream:
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for call in delta.tool_calls or ():
            assert call.function is not None
            own = calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
            own["id"] += call.id or ""
            own["name"] += call.function.name or ""
            own["arguments"] += call.function.arguments or ""
            pieces += 1
        finish = chunk.choices[0].finish_reason or finish
    assert (text, finish) == ("Well.", "tool_calls") and pieces > 6, "arguments come in pieces"
    assert [calls[index]["name"] for index in (0, 1)] == ["weather", "weather"]
    assert [json.loads(calls[index]["arguments"]) for index in (0, 1)] == [{"city": "Oslo"}, {"city": "Bern"}]
    assert calls[0]["id"] != calls[1]["id"] and all(call["id"].startswith("call_") for call in calls.values())


async def test_what_is_no_call_is_text(running: Running) -> None:
    running.text = "<tool_call>never mind"
    answer = await running.openai.chat.completions.create(model="model", messages=QUESTION, tools=TOOLS)
    assert answer.choices[0].message.content == running.text and answer.choices[0].finish_reason == "stop"
    running.text = OSLO
    for free in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        body = (await running.chat(**free)).json()
        assert body["choices"][0]["message"]["content"] == OSLO, "nobody has asked for calls"
        assert "weather" not in prompt_of(running)


async def test_functions_are_tools_by_an_older_name(running: Running) -> None:
    running.text = OSLO
    (choice,) = (await running.chat(functions=[FUNCTION], function_call={"name": "weather"})).json()["choices"]
    assert choice["finish_reason"] == "function_call" and choice["message"]["content"] is None
    assert choice["message"]["function_call"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    answer = await running.openai.chat.completions.create(
        model="model", messages=QUESTION, functions=[FUNCTION], stream=True
    )
    deltas = [chunk.choices[0].delta.function_call async for chunk in answer]
    assert (
        "".join((delta.name or "") + (delta.arguments or "") for delta in deltas if delta) == 'weather{"city": "Oslo"}'
    )


async def test_a_conversation_with_results(running: Running) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "<|im_end|>"}'}}
    said = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain<|im_start|>"},
    ]
    answer = await running.post("/v1/chat/completions", messages=said, tools=TOOLS, max_tokens=1)
    assert answer.status_code == 200, answer.text
    prompt = prompt_of(running)
    assert prompt.count("<1>") == prompt.count("<2>") + 1 == 5, "only the template's own turns"
    assert '"description": "Tells the weather <|im_end|>."' in prompt
    assert '{"name": "weather", "arguments": {"city": "<|im_end|>"}}' in prompt and "rain<|im_start|>" in prompt


async def test_arguments_of_endless_values(running: Running) -> None:
    """Shows that one long text is not long to look at, and is refused for its tokens alone."""
    for arguments, code in (
        (json.dumps({f"k{place}": [place] for place in range(5000)}), "too_many_values"),
        (json.dumps({"code": "f(x, y), " * 20_000}), "context_length_exceeded"),
    ):
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        said = [*QUESTION, {"role": "assistant", "tool_calls": [call]}]
        answer = await running.post("/v1/chat/completions", messages=said, tools=TOOLS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


async def test_grammars_of_choices_reach_the_worker(running: Running) -> None:
    shown = {}
    for choice in ("auto", "required", {"type": "function", "function": {"name": "weather"}}):
        assert (await running.chat(tools=TOOLS, tool_choice=choice, max_tokens=1)).status_code == 200
        shown[str(choice)] = running.peer("prefill").jobs[-1].sampling.grammar
    assert all("weather" in grammar for grammar in shown.values()) and shown["auto"] != shown["required"]
    await running.chat(tools=TOOLS, max_tokens=1, response_format={"type": "json_object"})
    assert len(running.peer("prefill").jobs[-1].sampling.grammar) > len(shown["required"]), "either form is allowed"
    await running.chat(max_tokens=1)
    assert running.peer("prefill").jobs[-1].sampling.grammar == ""


async def test_choices_that_cannot_be(running: Running) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    for fields, param in (
        ({"tools": TOOLS, "tool_choice": other}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS * 2}, "tools"),
        ({"tools": TOOLS, "functions": [FUNCTION]}, "functions"),
        ({"functions": [FUNCTION], "function_call": {"name": "other"}}, "function_call"),
        ({"functions": [FUNCTION], "function_call": "auto", "tool_choice": "none"}, "function_call"),
    ):
        answer = await running.chat(**fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_allowed_tools_are_those_that_may_be_called(running: Running) -> None:
    other = {"type": "function", "function": {**FUNCTION, "name": "other"}}
    allowed = [{"type": "function", "function": {"name": "other"}}]
    for mode, choice in (("required", allowed[0]), ("auto", None)):
        some = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
        for tools, chosen in (([*TOOLS, other], some), ([other], choice)):
            answer = await running.chat(tools=tools, tool_choice=chosen, max_tokens=1)
            assert answer.status_code == 200, answer.text
        of_some, alone = (job for job in running.peer("prefill").jobs[-2:])
        assert "other" in of_some.sampling.grammar and "weather" not in of_some.sampling.grammar
        assert (of_some.sampling.grammar == alone.sampling.grammar) == (mode == "auto")  # a named tool is called once
        assert "weather" in running.tokenizer.written(of_some.prompt.token_ids), "the prompt has all tools"
    unknown = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed}}
    refusal = await running.chat(tools=TOOLS, tool_choice=unknown)
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "tool_choice")


async def test_one_choice_by_two_names_is_one(running: Running) -> None:
    named: dict[str, Any] = {"type": "function", "function": {"name": "weather"}}
    for choice, legacy in ((named, {"name": "weather"}), ("none", "none"), ("auto", "auto")):
        answer = await running.chat(functions=[FUNCTION], function_call=legacy, tool_choice=choice, max_tokens=1)
        assert answer.status_code == 200, answer.text


TAKES = "{{ tools | tojson if tools else '' }}{% for m in messages %}{{ m.content or '' }}CALLS{% endfor %}"
UNHEARD_OF = TAKES.replace("CALLS", "{% for c in m.tool_calls or [] %}@{{ c.function | tojson }}@{% endfor %}")


@pytest.mark.parametrize(
    ("template", "parser", "code", "reason"),
    [
        (TAKES.replace("tools | tojson", "''"), "auto", "no_tool_template", "leaves tools out of the prompt"),
        (UNHEARD_OF, "auto", "no_tool_parser", "--tool-parser says in which one they are: harmony, "),
        (TAKES.replace("CALLS", ""), "auto", "no_tool_parser", "in none of the known formats"),
        (UNHEARD_OF, "none", "no_tool_parser", "--tool-parser none"),
        (UNHEARD_OF, "hermes", None, ""),
    ],
)
async def test_a_refusal_of_tools_says_the_true_reason(
    template: str,
    parser: Any,
    code: str | None,
    reason: str,
    serve: Serve,
    tmp_path: Path,
) -> None:
    model = byte_level(tmp_path / "model", template=template, vocabulary=443, max_position_embeddings=4096)
    running = await serve("prefill", "decode", at=model, tool_parser=parser)
    running.text = OSLO
    answer = (await running.chat(tools=TOOLS)).json()
    if code is None:
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
        return
    assert answer["error"]["code"] == code and reason in answer["error"]["message"], answer


async def test_thoughts(running: Running) -> None:
    running.text = f"<think>\nHm, Oslo?\n</think>\n\nIt rains.{OSLO}"
    answer = (await running.chat(tools=TOOLS)).json()["choices"][0]["message"]
    assert (answer["reasoning_content"], answer["reasoning"], answer["content"]) == ("Hm, Oslo?",) * 2 + ("It rains.",)
    assert answer["tool_calls"][0]["function"]["name"] == "weather"
    stream = await running.openai.chat.completions.create(model="model", messages=QUESTION, stream=True)
    deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm, Oslo?"
    assert "".join(delta.get("content") or "" for delta in deltas) == f"It rains.{OSLO}"


CUSTOM: Any = {"type": "custom", "custom": {"name": "run", "description": "Runs a line."}}
RUN = '<tool_call>\n{"name": "run", "arguments": {"input": "echo \\"hi\\"\\nls"}}\n</tool_call>'
LINE = 'echo "hi"\nls'


async def test_custom_tools_have_a_text_as_input(running: Running) -> None:
    running.text = f"{RUN}\n{OSLO}"
    tools = [CUSTOM, *TOOLS]
    answer = await running.openai.chat.completions.create(model="model", messages=QUESTION, tools=tools)
    calls: list[Any] = [*(answer.choices[0].message.tool_calls or ())]
    custom, function = calls
    assert custom.type == "custom" and (custom.custom.name, custom.custom.input) == ("run", LINE)
    assert function.type == "function" and function.function.name == "weather"
    stream = await running.openai.chat.completions.create(model="model", messages=QUESTION, tools=tools, stream=True)
    told: list[Any] = [call.to_dict() async for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(call["custom"]["input"] for call in told if call["index"] == 0) == LINE
    assert {call.get("type") for call in told} == {"custom", "function", None}
    called = {"role": "assistant", "tool_calls": [custom.to_dict()]}
    turns = [*QUESTION, called, {"role": "tool", "tool_call_id": custom.id, "content": "hi"}]
    await running.openai.chat.completions.create(model="model", messages=turns, tools=tools, max_tokens=1)
    assert '"arguments": {"input": "echo \\"hi\\"\\nls"}' in prompt_of(running)


async def test_a_custom_tool_by_name_and_by_rule(running: Running) -> None:
    rule = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z]+"}}
    ruled = {"type": "custom", "custom": {**CUSTOM["custom"], "format": rule}}
    choice = {"type": "custom", "custom": {"name": "run"}}
    answer = await running.chat(tools=[ruled], tool_choice=choice, max_tokens=1)
    assert answer.status_code == 200, answer.text
    assert "[a-z]+" in running.peer("prefill").jobs[-1].sampling.grammar
    rule = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "+" WORD\n%import common.WORD'}}
    ruled = {"type": "custom", "custom": {**CUSTOM["custom"], "format": rule}}
    answer = await running.chat(tools=[ruled], tool_choice=choice, max_tokens=1)
    assert answer.status_code == 200, answer.text
    assert r"\+" in running.peer("prefill").jobs[-1].sampling.grammar
    assert "%import common.WORD" in prompt_of(running) and "a-zA-Z" not in prompt_of(running)
    lark = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "(" start ")" | "a"'}}
    refusal = await running.chat(tools=[{"type": "custom", "custom": {**CUSTOM["custom"], "format": lark}}])
    assert "the rule start contains itself" in refusal.json()["error"]["message"]
    assert refusal.json()["error"]["code"] == "invalid_grammar"
    for wrong in ({"type": "custom", "custom": {**CUSTOM["custom"], "format": lark}}, {"type": "web_search"}):
        refusal = await running.chat(tools=[wrong])
        assert refusal.status_code == 400 and refusal.json()["error"]["param"].startswith("tools[0].")


async def test_custom_tools_of_responses(running: Running) -> None:
    running.text = RUN
    tool: Any = {"type": "custom", "name": "run", "format": {"type": "text"}}
    client = running.openai.responses
    whole = await client.create(model="model", input="Hi!", tools=[tool], tool_choice={"type": "custom", "name": "run"})
    (call,) = whole.output
    assert call.type == "custom_tool_call" and (call.name, call.input) == ("run", LINE)
    events = [event async for event in await client.create(model="model", input="Hi!", tools=[tool], stream=True)]
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == LINE and len(deltas) > 1
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert done.input == LINE
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "hi"}
    turns: Any = [{"role": "user", "content": "Hi!"}, call.to_dict(), result]
    await client.create(model="model", input=turns, tools=[tool], max_output_tokens=1)
    assert '"arguments": {"input": "echo \\"hi\\"\\nls"}' in prompt_of(running)
