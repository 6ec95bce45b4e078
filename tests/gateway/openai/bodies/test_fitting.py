"""Prompts are cut to fit, when the client asks for that."""

import re
from collections.abc import Sequence

import openai
import pytest

from gateway.openai.bodies.fitting import last_tokens, without_oldest
from gateway.openai.bodies.messages import Message
from gateway.text.tokenizer import TooManyTokens
from tests.gateway.running import Running


def test_the_last_tokens() -> None:
    prompt = [1, 2, 3, 4]
    assert [last_tokens(prompt, left, 3) for left in (None, 2, 9, -1, 0)] == [prompt, [3, 4], prompt, [2, 3, 4], []]


def said(turns: int) -> list[Message]:
    told = [Message(role="system", content="s")]
    for turn in range(turns):
        told += [Message(role="user", content=str(turn)), Message(role="assistant", content="a")]
    return told[:-1]


@pytest.mark.parametrize("turns", [2, 3, 30])
@pytest.mark.parametrize("room", [3, 4, 5, 6, 59, 100])
def test_as_few_turns_as_possible_are_left_out(turns: int, room: int) -> None:
    calls = 0

    def tokens_of(messages: Sequence[Message]) -> list[int]:
        nonlocal calls
        calls += 1
        if len(messages) > room:
            raise TooManyTokens(len(messages), counted=True)
        return [int(one.content) if one.role == "user" else -1 for one in messages]  # type: ignore[arg-type]

    kept = without_oldest(said(turns), tokens_of)
    fits = min(turns, room // 2)
    assert kept[0] == -1 and [turn for turn in kept if turn >= 0] == [*range(turns - fits, turns)]
    assert calls <= 2 + turns.bit_length()


def test_a_last_turn_that_is_too_long_is_refused() -> None:
    def tokens_of(messages: Sequence[Message]) -> list[int]:
        raise TooManyTokens(99, counted=True)

    with pytest.raises(TooManyTokens):
        without_oldest(said(3), tokens_of)


async def test_responses_forget_their_oldest_turns(running: Running) -> None:
    filler = "word " * 15
    turns = [{"role": role, "content": f"{n} {filler}"} for n in range(8) for role in ("user", "assistant")]
    asked = [*turns, {"role": "user", "content": "Hi!"}]
    assert (await running.post("/v1/responses", input=asked)).json()["error"]["code"] == "context_length_exceeded"
    answer = await running.post(
        "/v1/responses", input=asked, instructions="Be.", truncation="auto", max_output_tokens=9
    )
    assert (answer.status_code, answer.json()["truncation"]) == (200, "auto"), answer.text
    prompt = running.tokenizer.written(running.peer("prefill").jobs[-1].prompt.token_ids)
    kept = re.findall(r"user\n(\d)", prompt)
    assert kept == [*"01234567"][-len(kept) :] and 0 < len(kept) < 8
    assert prompt.startswith("<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user") and "Hi!" in prompt


async def test_truncated_prompts(running: Running) -> None:
    long: openai.types.chat.ChatCompletionMessageParam = {"role": "user", "content": "word " * 900}
    for left, tokens in ((10, 10), (-1, 256 - 20)):
        more = {"truncate_prompt_tokens": left}
        chat = await running.openai.chat.completions.create(
            model=running.gateway.model, messages=[long], max_tokens=20, extra_body=more
        )
        text = await running.openai.completions.create(
            model=running.gateway.model, prompt=["word " * 900, "Hi!"], max_tokens=20, extra_body=more
        )
        assert chat.usage is not None and chat.usage.prompt_tokens == tokens
        assert text.usage is not None and tokens < text.usage.prompt_tokens < tokens + 5
