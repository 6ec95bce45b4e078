"""Marks of measured loads: from a load generator's request to the records that the dashboard reads."""

import asyncio
from typing import Any

import msgspec
import pytest

from contracts.errors import GatewayError
from infra.redis.records import RunMark
from infra.redis.registry import RUN_MARKS_KEY
from launcher.bench.run_mark import marked
from launcher.instance.endpoint import ClientEndpoint
from tests.gateway.running import Running


async def marks(running: Running) -> list[RunMark]:
    entries: Any = await running.store.xrange(RUN_MARKS_KEY)
    return [msgspec.json.decode(fields[b"json"], type=RunMark) for _, fields in entries]


async def test_a_load_is_marked_at_its_begin_and_at_its_end_also_if_it_fails(running: Running) -> None:
    def load() -> None:
        with marked(ClientEndpoint(running.url, "", ""), "bench 4/s"):
            raise GatewayError("the load failed")

    with pytest.raises(GatewayError, match="the load failed"):
        await asyncio.to_thread(load)
    found: list[RunMark] = []

    async def two() -> bool:
        found[:] = await marks(running)
        return len(found) == 2

    while not await two():
        await asyncio.sleep(0.02)
    assert [(mark.name, mark.ended) for mark in found] == [("bench 4/s", False), ("bench 4/s", True)]
    assert found[0].run == found[1].run and found[0].at <= found[1].at


@pytest.mark.parametrize("body", [{"run": "a"}, {"run": "a", "name": ""}, {"run": "a" * 65, "name": "b"}, []])
async def test_a_mark_without_a_name_is_refused(running: Running, body: object) -> None:
    assert (await running.client.post("/load_runs", json=body)).status_code == 400


def test_a_server_that_is_away_is_measured_without_marks() -> None:
    with marked(ClientEndpoint("http://127.0.0.1:1", "", ""), "bench 4/s"):
        pass
