"""An answer may continue the assistant's last message, as clients of several APIs ask."""

from typing import Any

import anthropic
import pytest

from tests.gateway.running import Running
from tests.plain_http import PLAIN
from tests.waiting import DEADLINE_S

BEGUN: Any = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "The quick"}]
PROMPT = "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\nThe quick"


def prompt_of(running: Running) -> str:
    return running.tokenizer.written(running.peer("prefill").jobs[-1].prompt.token_ids)


@pytest.mark.parametrize("echo", [False, True])
async def test_a_chat_that_continues(running: Running, echo: bool) -> None:
    running.text = " fox"
    more = {"continue_final_message": True, "add_generation_prompt": False, "echo": echo}
    asked: Any = {"model": running.gateway.model, "messages": BEGUN, "extra_body": more}
    whole = await running.openai.chat.completions.create(**asked)
    expected = "The quick fox" if echo else " fox"
    assert (whole.choices[0].message.content, prompt_of(running)) == (expected, PROMPT)
    stream = await running.openai.chat.completions.create(**asked, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == expected
    counted = await running.post("/tokenize", messages=BEGUN, continue_final_message=True)
    assert running.tokenizer.written(counted.json()["tokens"]) == PROMPT


async def test_anthropics_prefill(running: Running) -> None:
    running.text = " fox"
    async with anthropic.AsyncAnthropic(
        base_url=running.url,
        api_key="mine",
        max_retries=0,
        timeout=DEADLINE_S,
        http_client=anthropic.DefaultAsyncHttpxClient(verify=PLAIN),
    ) as client:
        message = await client.messages.create(model=running.gateway.model, max_tokens=20, messages=BEGUN)
    assert message.content[0].type == "text" and message.content[0].text == " fox"
    assert prompt_of(running) == PROMPT
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    asked = {"model": running.gateway.model, "max_tokens": 5}
    refusal = await running.post("/v1/messages", **asked, messages=[BEGUN[0], {"role": "assistant", "content": [call]}])
    assert refusal.status_code == 400 and refusal.json()["error"]["message"].startswith("messages: the last message")


async def test_a_prompt_that_ends_with_the_last_message(running: Running) -> None:
    await running.chat(add_generation_prompt=False, max_tokens=1)
    assert prompt_of(running) == "<|im_start|>user\nHi!<|im_end|>\n"


async def test_reasoning_is_left_out_if_asked(calling: Running) -> None:
    calling.text = "<think>Hm.</think>Hello."
    for stream in (False, True):
        hidden = (await calling.chat(include_reasoning=False, stream=stream)).text
        assert '"content":"H' in hidden and "reasoning_content" not in hidden
        assert "reasoning_content" in (await calling.chat(stream=stream)).text
