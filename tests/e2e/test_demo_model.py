"""The demo model through the whole system: transformers' tokens, and the official client."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
import torch
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.conftest import DEMO
from tests.e2e.harness.system import System
from tests.reference import SAFETY_FACTOR
from tests.waiting import LONG_DEADLINE_S

QUESTIONS = [
    "Hello!",
    "What is 7 + 5?",
    "Tell me a story about a fox and a lantern.",
    "What is TTFT?",
    "What do owls eat?",
    "Who are you?",
    "What is the weather in Paris?",
    "Thanks, bye!",
]
OUTPUT_TOKENS = 48


@pytest.fixture(scope="module")
def client(system: System) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{system.gateway_url}/v1", api_key="none", timeout=LONG_DEADLINE_S, max_retries=0
    ) as made:
        yield made


@torch.inference_mode()
def reference_answers(questions: Sequence[str]) -> list[tuple[str, str, bool]]:
    """Question, transformers' greedy answer in fp32, and whether every token of it was far from the second best."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32, attn_implementation="eager").eval()
    answers = []
    for question in questions:
        chat = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        made = model.generate(
            **ids, max_new_tokens=OUTPUT_TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        logits = torch.stack(made.logits)[:, 0]  # [tokens, vocab]
        exact = model.double()(made.sequences[:, :-1]).logits[0, -len(logits) :]
        model.float()
        best = logits.topk(2).values
        safe = bool(((best[:, 0] - best[:, 1]) > SAFETY_FACTOR * (logits - exact).abs().max()).all())
        text = tokenizer.decode(made.sequences[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        answers.append((question, text, safe))
    return answers


def test_chat_gives_the_references_answers(client: openai.OpenAI) -> None:
    answers = reference_answers(QUESTIONS)
    compared = [(question, text) for question, text, safe in answers if safe]
    assert len(compared) >= 0.9 * len(answers) - 1, "too many answers are too close to call"
    model = client.models.list().data[0].id
    for question, text in compared:
        chat: Any = [{"role": "user", "content": question}]
        whole = client.chat.completions.create(model=model, messages=chat, temperature=0, max_tokens=OUTPUT_TOKENS)
        assert whole.choices[0].message.content == text
        stream = client.chat.completions.create(
            model=model,
            messages=chat,
            temperature=0,
            max_tokens=OUTPUT_TOKENS,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("stop", "length")
        assert chunks[-1].usage is not None and chunks[-1].usage == whole.usage


def test_a_seed_repeats_an_answer_whoever_serves_it(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    chat: Any = [{"role": "user", "content": "Tell me a story about a whale and a drum."}]
    answers = {
        client.chat.completions.create(model=model, messages=chat, seed=7, temperature=1.0, max_tokens=40)
        .choices[0]
        .message.content
        for _ in range(4)
    }
    assert len(answers) == 1


TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name, description in [
        ("get_weather", "Tells the weather in a city."),
        ("get_time", "Tells the time in a city."),
    ]
]
CHOICES: list[Any] = ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}]


@pytest.mark.parametrize("choice", CHOICES, ids=["auto", "required", "named"])
def test_a_tool_is_called_and_its_result_is_said(client: openai.OpenAI, choice: Any) -> None:
    model = client.models.list().data[0].id
    chat: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    whole = client.chat.completions.create(
        model=model, messages=chat, tools=TOOLS, tool_choice=choice, temperature=0, max_tokens=OUTPUT_TOKENS
    ).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls or []
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    with client.chat.completions.stream(
        model=model, messages=chat, tools=TOOLS, tool_choice=choice, temperature=0, max_tokens=OUTPUT_TOKENS
    ) as stream:
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)
    chat += [whole.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}]
    said = client.chat.completions.create(
        model=model, messages=chat, tools=TOOLS, temperature=0, max_tokens=OUTPUT_TOKENS
    )
    assert said.choices[0].message.content == "It is sunny, 21 degrees in Paris."
    assert said.choices[0].finish_reason == "stop"


def test_no_tool_is_called_where_none_is_needed(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    chat: Any = [{"role": "user", "content": "What do owls eat?"}]
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(
            model=model, messages=chat, tools=TOOLS, tool_choice=choice, temperature=0, max_tokens=OUTPUT_TOKENS
        )
        message = answer.choices[0].message
        assert message.content == "Owls eat mice and insects." and not message.tool_calls
