"""The demo model's tools: prompts that show them are everybody's, calls are drawn where one fits, the model calls."""

import json
from itertools import islice
from random import Random
from typing import Any

import pytest
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from demo_model.conversation import messages
from demo_model.corpus import conversations, toolless
from demo_model.evaluate import generate, prompt, uses_result
from demo_model.lessons import skills, tools
from demo_model.split import Split
from demo_model.tokenizer import TOOL_MARKS
from demo_model.train import WEIGHTS
from gateway.text.chat import Chat
from gateway.text.tokenizer import ModelTokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(WEIGHTS)


def test_the_gateway_makes_transformers_prompts(tokenizer: PreTrainedTokenizerBase) -> None:
    ours = ModelTokenizer(WEIGHTS)
    for talk in islice((talk for talk in conversations(8) if talk.tools), 100):
        chat = messages(talk.turns)[:-1]
        theirs = tokenizer.apply_chat_template(
            chat, tools=talk.definitions(), add_generation_prompt=True, return_dict=False
        )
        assert ours.chat(Chat(chat, talk.definitions())) == theirs


@pytest.mark.parametrize(
    ("tool", "shown"),
    [
        ({"name": "now"}, '{"name": "now", "arguments": {}}'),
        ({"name": "now", "parameters": {}}, '{"name": "now", "arguments": {}}'),
        (
            {
                "name": "go",
                "description": 'Say "go".',
                "parameters": {"properties": {"to": {}, "by": {"type": "string"}}},
            },
            '{"description": "Say \\"go\\".", "name": "go", "arguments": {"to": "any", "by": "string"}}',
        ),
        (
            {
                "name": "weather",
                "strict": True,
                "parameters": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "city": {"type": "string", "description": "Which city"},
                        "unit": {"enum": ["C", "F"], "type": "string"},
                        "day": {"type": "string"},
                    },
                    "required": ["city", "unit"],
                },
            },
            '{"name": "weather", "arguments": {"city": "string", "unit": ["C", "F"]}}',
        ),
    ],
)
def test_a_tool_is_shown_as_the_call_that_it_wants(
    tokenizer: PreTrainedTokenizerBase, tool: dict[str, Any], shown: str
) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(chat, tools=[{"type": "function", "function": tool}], tokenize=False)
    assert text == f"<|bos|><|system|><tools>\n{shown}\n</tools><|end|><|user|>Hi<|end|>"


def test_calls_and_results_are_turns(tokenizer: PreTrainedTokenizerBase) -> None:
    calls = [{"function": {"name": "f", "arguments": arguments}} for arguments in ({"x": "é"}, '{"x":1}')]
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "Well.", "tool_calls": calls},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
        {"role": "assistant", "content": None, "tool_calls": calls[:1]},
        {"role": "tool", "content": "three"},
    ]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|bos|><|user|>Go<|end|>"
        '<|assistant|>Well.\n<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {"x":1}}\n</tool_call><|end|>'
        "<|user|><tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|end|>"
        '<|assistant|><tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call><|end|>'
        "<|user|><tool_response>\nthree\n</tool_response><|end|><|assistant|>"
    )


def test_the_marks_of_calls_are_tokens_that_answers_show(tokenizer: PreTrainedTokenizerBase) -> None:
    for mark in TOOL_MARKS:
        (id,) = tokenizer.encode(mark, add_special_tokens=False)
        assert tokenizer.decode([id], skip_special_tokens=True) == mark


def test_tools_are_called_where_just_one_fits() -> None:
    rng = Random(5)
    called = 0
    for _ in range(500):
        talk = tools.tool_conversation(rng, toolless)
        names = [tool.name for tool in talk.tools]
        assert len(set(names)) == len(names)
        for exchange in talk.turns:
            called += bool(exchange.calls)
            assert all(call.name in names for call in exchange.calls)
            assert all(str(value) in exchange.ask for call in exchange.calls for value in call.arguments.values()) or (
                "=" in exchange.answer
            )
    assert called > 200


def name_and_values(call: str) -> tuple[str, list[Any]]:
    """What a call says; names of arguments are left out, for the gateway's grammar keeps to those of the schema."""
    body = json.loads(call.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    return body["name"], list(body["arguments"].values())


def test_the_shipped_model_calls_tools_and_says_their_results(tokenizer: PreTrainedTokenizerBase) -> None:
    model = LlamaForCausalLM.from_pretrained(WEIGHTS, dtype="float32")
    rng = Random(12)
    box = [skills.WEATHER(rng), skills.TIME(rng)]
    drawn = [tools.using(rng, Split.HELD_OUT, skill, box) for skill in box for _ in range(14)]
    talks = [talk for talk in drawn if len(talk.turns[0].calls) == 1][:20]
    calls = generate(model, tokenizer, [prompt(tokenizer, talk) for talk in talks])
    answers = generate(model, tokenizer, [prompt(tokenizer, talk, told=True) for talk in talks])
    wanted = [name_and_values(talk.turns[0].calling()) for talk in talks]
    assert sum(name_and_values(call) == want for call, want in zip(calls, wanted, strict=True)) >= 17, calls
    assert sum(uses_result(talk.turns[0], answer) for talk, answer in zip(talks, answers, strict=True)) >= 17, answers
