"""Clients that go away end their requests on the prefill and on the decode workers, long before the last token."""

import asyncio

import httpx

from tests.e2e.harness.system import System
from tests.plain_http import PLAIN
from tests.waiting import LONG_DEADLINE_S

STREAM_COUNT = 60
MAX_TOKENS = 600


def test_streams_that_are_left_end_on_both_workers(system: System) -> None:
    before = {record.epoch: record.load.output_tokens for record in system.wait_until_idle()}

    async def leave(client: httpx.AsyncClient, number: int) -> None:
        """Reads up to seven events of a long answer."""
        body = {"prompt": f"Story {number} " * (1 + number), "max_tokens": MAX_TOKENS, "ignore_eos": True}
        async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            events = 0
            async for line in answer.aiter_lines():
                events += line.startswith("data: {")
                if events > number % 7:
                    return

    async def everything() -> None:
        async with httpx.AsyncClient(base_url=system.gateway_url, timeout=LONG_DEADLINE_S, verify=PLAIN) as client:
            await asyncio.gather(*(leave(client, number) for number in range(STREAM_COUNT)))

    asyncio.run(everything())
    records = system.wait_until_idle()  # no worker holds a sequence or a block
    made = sum(record.load.output_tokens - before[record.epoch] for record in records)
    assert made < STREAM_COUNT * MAX_TOKENS / 2
    ended = [record.outcome for record in system.finished()[-STREAM_COUNT:]]
    assert ended.count("cancelled") > STREAM_COUNT / 2
