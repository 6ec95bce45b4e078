"""What clients may ask beside a text, of the demo model through the whole system: scores, ends, choices, forms."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.conftest import DEMO
from tests.e2e.harness.system import System

PROMPT = "Once upon a time there was a little fox"
NEAR = 1e-4


@pytest.fixture(scope="module")
def client(system: System) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{system.gateway_url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def completed(client: openai.OpenAI, model: str, **asked: Any) -> Any:
    body = {"prompt": PROMPT, "temperature": 0, "extra_body": asked.pop("more", {}), **asked}
    return client.completions.create(model=model, **body)


def test_echoed_and_new_tokens_have_transformers_log_probabilities(client: openai.OpenAI, model: str) -> None:
    more = {"return_token_ids": True}
    (choice,) = completed(client, model, max_tokens=12, echo=True, logprobs=3, more=more).choices
    ids = choice.prompt_token_ids + choice.token_ids
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)(torch.tensor([ids])).logits[0]
    expected = torch.log_softmax(logits[:-1], -1)
    told = choice.logprobs
    assert len(told.tokens) == len(ids) and told.token_logprobs[0] is None
    for place, logprob in enumerate(told.token_logprobs[1:]):
        assert abs(logprob - expected[place, ids[place + 1]].item()) < NEAR
        best = sorted(told.top_logprobs[place + 1].values(), reverse=True)[:3]
        assert all(abs(a - b) < NEAR for a, b in zip(best, expected[place].topk(3).values.tolist(), strict=True))
    streamed = list(completed(client, model, max_tokens=12, echo=True, logprobs=3, stream=True))
    parts = [chunk.choices[0] for chunk in streamed]
    assert "".join(part.text for part in parts) == choice.text
    assert [one for part in parts if part.logprobs for one in part.logprobs.token_logprobs] == told.token_logprobs
    assert [one for part in parts if part.logprobs for one in part.logprobs.text_offset] == told.text_offset


def test_a_token_of_the_clients_ends_the_answer(client: openai.OpenAI, model: str) -> None:
    plain = completed(client, model, max_tokens=12, more={"return_token_ids": True}).choices[0]
    stop = plain.token_ids[7]
    first = plain.token_ids.index(stop)
    ended = completed(client, model, max_tokens=12, more={"return_token_ids": True, "stop_token_ids": [stop]}).choices[
        0
    ]
    assert (ended.token_ids, ended.stop_reason, ended.finish_reason) == (plain.token_ids[: first + 1], stop, "stop")
    later = completed(client, model, max_tokens=12, more={"stop_token_ids": [stop], "min_tokens": first + 3}).choices[0]
    assert later.text.startswith(ended.text) and len(later.text) > len(ended.text)


def test_the_best_is_the_likeliest(client: openai.OpenAI, model: str) -> None:
    asked = {"max_tokens": 8, "temperature": 1.5, "seed": 7, "logprobs": 0}
    every = completed(client, model, n=4, **asked).choices
    means = {choice.text: sum(choice.logprobs.token_logprobs) / len(choice.logprobs.tokens) for choice in every}
    best = completed(client, model, n=2, best_of=4, **asked).choices
    assert [choice.text for choice in best] == sorted(means, key=lambda text: -means[text])[:2]


def test_biases_forbid_and_force(client: openai.OpenAI, model: str) -> None:
    plain = completed(client, model, max_tokens=6, more={"return_token_ids": True}).choices[0]
    first = str(plain.token_ids[0])
    other = completed(client, model, max_tokens=6, logit_bias={first: -100}, more={"return_token_ids": True}).choices[0]
    assert plain.token_ids[0] not in other.token_ids
    allowed = sorted(set(plain.token_ids))[:2]
    kept = completed(
        client, model, max_tokens=6, more={"allowed_token_ids": allowed, "return_token_ids": True}
    ).choices[0]
    assert set(kept.token_ids) <= set(allowed)


def test_a_form_is_kept_to(client: openai.OpenAI, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["fox", "owl"]}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Who are you?"}],
        response_format={"type": "json_schema", "json_schema": {"name": "who", "schema": schema, "strict": True}},
        max_tokens=200,
        temperature=0,
    )
    assert answer.choices[0].finish_reason == "stop", answer.choices[0].message.content
    found = json.loads(answer.choices[0].message.content or "")
    assert found["name"] in ("fox", "owl") and 0 <= found["age"] <= 9 and len(found) == 2
