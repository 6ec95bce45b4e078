"""Log-probabilities, echoes and token ids in answers, whole and streamed, as OpenAI's and vLLM's clients read them."""

import json
from typing import Any

import httpx
import pytest

from tests.gateway.openai.answers.test_envelope import events
from tests.gateway.running import Running

QUESTION: Any = [{"role": "user", "content": "Hi!"}]


def ids_of(running: Running) -> list[int]:
    return [*running.tokenizer.encode(running.text, special=False), running.tokenizer.stop_ids[0]]


def choices_of(answer: httpx.Response, stream: bool) -> list[Any]:
    """The only choice, or what came of it in each chunk."""
    if not stream:
        return list(answer.json()["choices"])
    return [json.loads(event)["choices"][0] for event in events(answer)[:-1]]


async def test_logprobs_of_a_chat(running: Running) -> None:
    running.text = "Hé 🙂"
    answer = await running.openai.chat.completions.create(
        model="tiny", messages=QUESTION, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    ids = ids_of(running)
    assert [entry.logprob for entry in logprobs.content] == [-token / 8 for token in ids]
    data = bytes(byte for entry in logprobs.content for byte in entry.bytes or ())
    assert data.decode() == running.text + "<|im_end|>"
    tops = [[(top.logprob, bytes(top.bytes or b"")) for top in entry.top_logprobs] for entry in logprobs.content]
    of = running.tokenizer.bytes_of.of
    assert tops == [[(-(token + rank) / 8, of(token + rank)) for rank in (0, 1)] for token in ids]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_with_logprobs(running: Running, stream: bool) -> None:
    running.text = "Hé 🙂"
    prompt = running.tokenizer.encode("Hi 🎉", special=False)
    answer = await running.post("/v1/completions", prompt=prompt, echo=True, logprobs=1, max_tokens=50, stream=stream)
    choices = [json.loads(event)["choices"][0] for event in events(answer)[:-1]] if stream else answer.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == "Hi 🎉Hé 🙂"
    told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    tokens, logprobs, tops, offsets = (
        [one for each in told for one in each[name]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    )
    ids = [*prompt, *ids_of(running)]
    assert logprobs == [None, *[-token / 8 for token in ids[1:]]] and tops[0] is None
    assert tokens == [running.tokenizer.bytes_of.name(token) for token in ids]
    assert all(max(top.values()) == logprob for top, logprob in zip(tops[1:], logprobs[1:], strict=True))
    assert offsets[:3] == [0, 1, 2] and offsets[-1] == len("Hi 🎉Hé 🙂") and offsets == sorted(offsets)


async def test_only_an_echo(running: Running) -> None:
    for stream in (False, True):
        answer = await running.post(
            "/v1/completions", prompt="Hi!", echo=True, logprobs=0, max_tokens=0, return_token_ids=True, stream=stream
        )
        choices = (
            [json.loads(event)["choices"][0] for event in events(answer)[:-1]] if stream else answer.json()["choices"]
        )
        assert "".join(choice["text"] for choice in choices) == "Hi!"
        assert choices[-1]["finish_reason"] == "length"
        assert sum(len(choice.get("token_ids", ())) for choice in choices) == 0
        assert choices[0]["prompt_token_ids"] == running.tokenizer.encode("Hi!", special=True)
        assert len(choices[0]["logprobs"]["tokens"]) == len(choices[0]["prompt_token_ids"])
    assert (await running.post("/v1/completions", prompt="Hi!", echo=True, max_tokens=0)).json()["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 0,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_prompt_logprobs(running: Running) -> None:
    chat = (await running.chat(prompt_logprobs=2, max_tokens=1, return_token_ids=True)).json()
    completion = (await running.post("/v1/completions", prompt=[5, 6, 7], prompt_logprobs=0, max_tokens=1)).json()
    none, second, third = completion["choices"][0]["prompt_logprobs"]
    assert none is None and second == {"6": {"logprob": -0.75, "rank": 1, "decoded_token": "$"}}
    assert third == {"7": {"logprob": -0.875, "rank": 1, "decoded_token": "%"}}
    ids = chat["prompt_token_ids"]
    assert [list(map(int, entry)) for entry in chat["prompt_logprobs"][1:]] == [[token, token + 1] for token in ids[1:]]
    assert [entry["rank"] for entry in chat["prompt_logprobs"][1].values()] == [1, 2]


async def test_token_ids_and_the_usage_so_far(running: Running) -> None:
    """A token without text gives a chunk too: here the parts of a character, and the end."""
    running.text = "🙂"
    answer = await running.chat(
        stream=True,
        return_token_ids=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    chunks = [json.loads(event) for event in events(answer)[:-1]]
    assert chunks[0]["prompt_token_ids"] == running.peer("prefill").jobs[0].prompt.token_ids
    own = [chunk["choices"][0].get("token_ids", []) for chunk in chunks if chunk["choices"]]
    assert [token for ids in own for token in ids] == ids_of(running) and len(own) > 3
    made = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert made == sorted(made) and made[-1] == len(ids_of(running))
    whole = (await running.chat(return_token_ids=True)).json()
    assert whole["choices"][0]["token_ids"] == ids_of(running)


async def test_tokens_by_their_numbers(running: Running) -> None:
    names = [f"token_id:{token}" for token in ids_of(running)]
    asked = {"return_tokens_as_token_ids": True, "max_tokens": 200}
    completion = (await running.post("/v1/completions", prompt="Hi!", logprobs=1, **asked)).json()
    assert completion["choices"][0]["logprobs"]["tokens"] == names
    chat = (await running.chat(logprobs=True, **asked)).json()
    entries = chat["choices"][0]["logprobs"]["content"]
    assert [(entry["token"], entry["top_logprobs"]) for entry in entries] == [(name, []) for name in names]


async def test_the_best_of_several(running: Running) -> None:
    running.texts = {0: "zzzz", 1: "aa", 2: "mmm"}
    best = await running.openai.completions.create(model="tiny", prompt=["x", "y"], n=2, best_of=3, max_tokens=50)
    assert [(choice.index, choice.text) for choice in best.choices] == [(0, "aa"), (1, "mmm"), (2, "aa"), (3, "mmm")]
    assert all(choice.logprobs is None for choice in best.choices)
    assert best.usage is not None and best.usage.completion_tokens > 4 * 3, "what was made and not chosen counts"
    assert running.peer("prefill").jobs[0].samples == (0, 1, 2)


@pytest.mark.parametrize("echo", [False, True])
async def test_each_chunk_of_a_completion_has_what_the_client_reads_of_it(running: Running, echo: bool) -> None:
    asked: dict[str, Any] = {"prompt": "Hi!", "logprobs": 1, "return_token_ids": True, "echo": echo}
    chunks = choices_of(await running.post("/v1/completions", **asked, max_tokens=50, stream=True), stream=True)
    (whole,) = (await running.post("/v1/completions", **asked, max_tokens=50)).json()["choices"]
    assert [token for chunk in chunks for token in chunk["token_ids"]] == whole["token_ids"]
    for name, told in whole["logprobs"].items():
        assert [one for chunk in chunks for one in chunk["logprobs"][name]] == told


async def test_each_chunk_of_a_chat_has_what_the_client_reads_of_it(running: Running) -> None:
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    chunks = choices_of(await running.chat(**asked, stream=True), stream=True)
    (whole,) = (await running.chat(**asked)).json()["choices"]
    assert [token for chunk in chunks for token in chunk["token_ids"]] == whole["token_ids"]
    assert [one for chunk in chunks for one in chunk["logprobs"]["content"]] == whole["logprobs"]["content"]
    plain = choices_of(await running.chat(stream=True), stream=True)
    assert not any("token_ids" in chunk or chunk["logprobs"] for chunk in plain), "who asks for nothing gets nothing"
