"""A shutdown: open answers end, or are told why they do not, and nothing new begins."""

import asyncio
import json
import time
from typing import Any

import pytest

from gateway.errors import APIError
from gateway.openai.bodies.parsing import parse_chat
from tests.gateway.requests.test_faults import open_streams
from tests.gateway.running import TEXT, Serve, until


async def test_a_shutdown_lets_open_answers_end_and_takes_no_others(serve: Serve) -> None:
    running = await serve("prefill", drain_seconds=60.0)
    decode = await running.add("decode", stalls_at=3)
    task = asyncio.create_task(running.chat(stream=True))
    await until(lambda: any(len(one.sample.tokens) == 3 for one in open_streams(running)), "three tokens")
    assert (await running.client.get("/ready")).status_code == 200
    drain = asyncio.create_task(running.gateway.drain())
    await asyncio.sleep(0)
    ready, refused = await running.client.get("/ready"), await running.chat()
    assert (ready.status_code, ready.json()["stage"]) == (503, "shutting down")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert refused.headers["retry-after"] == "1"
    assert not drain.done()
    await decode.die()
    await running.add("decode")  # another worker goes on; so may answers that have to be tried again
    answer = await task
    assert answer.text.endswith("data: [DONE]\n\n") and "error" not in answer.text
    await drain
    assert [record.outcome for record in await running.finished(1)] == ["finished"]


async def test_a_shutdown_ends_what_takes_too_long_with_an_error_that_says_so(serve: Serve) -> None:
    running = await serve("prefill", drain_seconds=0.2)
    decode = await running.add("decode", stalls_at=3)
    task = asyncio.create_task(running.chat(stream=True))
    await until(lambda: any(len(one.sample.tokens) == 3 for one in open_streams(running)), "three tokens")
    await running.gateway.drain()
    data = (await task).text.strip().split("\n\n")
    error = json.loads(data[-2].removeprefix("data: "))["error"]
    assert error["code"] == "shutting_down" and "0.2 s (--drain-seconds)" in error["message"]
    assert data[-1] == "data: [DONE]"
    await until(lambda: decode.cancels, "the cancellation")


async def test_a_shutdown_waits_for_prompts_that_are_being_tokenized(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await serve("prefill", "decode", drain_seconds=60.0)
    admission = running.gateway.admission
    assert admission is not None
    go = asyncio.Event()
    tokenized = admission.work.run

    async def slowly(*arguments: Any) -> Any:
        await go.wait()
        return await tokenized(*arguments)

    monkeypatch.setattr(admission.work, "run", slowly)
    task = asyncio.create_task(running.chat())
    await until(lambda: admission.admitting, "the prompt")
    drain = asyncio.create_task(running.gateway.drain())
    await until(lambda: running.gateway.readiness()[0] == "shutting down", "the drain")
    go.set()
    answer = await task
    assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, TEXT)
    await drain


async def test_nothing_begins_behind_a_shutdown(serve: Serve) -> None:
    """A body that came slowly was let in before it."""
    running = await serve("prefill", "decode", drain_seconds=0.01)
    admission = running.gateway.ready_admission()
    await running.gateway.drain()
    admitted = await admission.chat(_question())
    with pytest.raises(APIError, match="shutting down"):
        await running.gateway.holdings().open(admitted.prompts, time.monotonic(), True)


def _question() -> Any:
    return parse_chat(b'{"messages": [{"role": "user", "content": "Hi!"}], "stream": true}')
