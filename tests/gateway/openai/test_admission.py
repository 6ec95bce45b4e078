"""What is refused before work is done for it, and how much of that work is done at once."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.openai.admission import PromptAdmission
from gateway.openai.bodies.constraints import size_of_tools
from gateway.openai.bodies.tools import MAX_TOOLS
from gateway.openai.fair_threads import FairThreads
from gateway.openai.tokenizer_work import INLINE_CHARACTERS, LONG_PROMPT_CHARACTERS, TOKENIZER_THREADS
from infra.fair_queueing.turns import NO_TENANT
from tests.gateway.models import CONTEXT_TOKENS
from tests.gateway.running import Running, Serve, until

WORDS = "a decode worker " * (INLINE_CHARACTERS // 16 + 1)  # is tokenized on a thread, and fits into the context
PATH = "/v1/completions"


def admission(running: Running) -> PromptAdmission:
    assert running.gateway.admission is not None
    return running.gateway.admission


@asynccontextmanager
async def busy(threads: FairThreads) -> AsyncIterator[None]:
    held = threading.Event()
    works = [asyncio.create_task(threads.run(held.wait, NO_TENANT, 1, 60.0)) for _ in range(TOKENIZER_THREADS)]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        held.set()
        await asyncio.gather(*works)


async def test_prompts_that_wait_for_the_tokenizer_count_as_answers_in_progress(serve: Serve) -> None:
    running = await serve("prefill", "decode", max_requests=2, max_waiting=0)
    async with busy(admission(running).work._threads):
        waiting = [asyncio.create_task(running.post(PATH, prompt=WORDS, max_tokens=2)) for _ in range(2)]
        await until(lambda: admission(running).admitting == 2, "two prompts to wait")
        refusal = await running.post(PATH, prompt="a")
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert [(await answer).status_code for answer in waiting] == [200, 200]
    assert (await running.post(PATH, prompt="a")).status_code == 200


async def test_a_client_that_leaves_gives_its_room_back(serve: Serve) -> None:
    running = await serve("prefill", "decode", max_requests=1, max_waiting=0)
    async with busy(admission(running).work._threads):
        waiting = asyncio.create_task(running.post(PATH, prompt=WORDS))
        await until(lambda: admission(running).admitting == 1, "a prompt to wait")
        waiting.cancel()
    await until(lambda: admission(running).admitting == 0, "the room to be given back")
    await running.idle()


async def test_a_prompt_is_refused_for_its_length_alone(serve: Serve) -> None:
    running = await serve("prefill", "decode")
    for path, body in (
        (PATH, {"prompt": "z" * 1_000_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "z" * 1_000_000}]}),
    ):
        refusal = await running.post(path, **body)
        error = refusal.json()["error"]
        assert (refusal.status_code, error["code"]) == (400, "context_length_exceeded")
        assert f"this model's maximum context length is {CONTEXT_TOKENS} tokens" in error["message"]
        assert "Input tokens exceed the configured limit" in error["message"] and "at least" in error["message"]


async def test_short_prompts_do_not_wait_for_long_ones(serve: Serve) -> None:
    running = await serve("prefill", "decode")
    async with busy(admission(running).work._long):
        assert (await running.post(PATH, prompt=WORDS, max_tokens=2)).status_code == 200


def test_schemas_of_tools_are_read_on_a_thread_and_not_among_the_long_prompts() -> None:
    """A single tool may have a schema of a megabyte."""
    assert INLINE_CHARACTERS < size_of_tools(1) < size_of_tools(MAX_TOOLS - 10) <= LONG_PROMPT_CHARACTERS
