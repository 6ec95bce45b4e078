"""Clients that go away leave nothing behind, on any worker."""

import asyncio

import httpx

from tests.e2e.harness.system import System
from tests.plain_http import PLAIN

STREAMS = 100


def test_a_hundred_streams_cut_midway_leave_no_block_in_use(system: System) -> None:
    system.wait_until_idle()

    async def cut(client: httpx.AsyncClient, number: int) -> int:
        """Reads a few chunks of a long answer, or none, and goes away."""
        body = {
            "model": system.model.name,
            "prompt": f"Story {number} " * (1 + number % 40),
            "max_tokens": 600,
            "ignore_eos": True,
            "stream": True,
        }
        seen = 0
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                seen += line.startswith("data:")
                if seen > number % 7:
                    break
        return seen

    async def everything() -> list[int]:
        limits = httpx.Limits(max_connections=STREAMS)
        async with httpx.AsyncClient(base_url=system.gateway_url, timeout=60, limits=limits, verify=PLAIN) as client:
            body = {"id": (await client.get("/v1/models")).json()["data"][0]["id"]}
            assert body["id"] == system.model.name
            return await asyncio.gather(*(cut(client, number) for number in range(STREAMS)))

    seen = asyncio.run(everything())
    assert len(seen) == STREAMS and all(seen)
    for record in system.wait_until_idle(60):
        assert record.load.blocks_used == 0
    ended = system.finished()[-STREAMS:]
    assert sum(record.outcome == "cancelled" for record in ended) > STREAMS // 2
