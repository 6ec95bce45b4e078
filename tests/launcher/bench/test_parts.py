"""A load from several processes is the same load: every request once, at its time, with the figures of one process."""

import asyncio
from collections.abc import Iterator

import pytest

from contracts.slo import SLO
from launcher.bench.parts import LoadPart, PartProcesses, processes_for
from launcher.instance.endpoint import ClientEndpoint
from tests.dashboard.stand_in import StandIn
from workloads.request import NextTurn, PlannedRequest, TimedRequest

HELLO = PlannedRequest(9, ("Hello!",))


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


def part(url: str, load: list[TimedRequest]) -> LoadPart:
    return LoadPart(ClientEndpoint(url, "", ""), "demo", 64, 60.0, None, SLO(60_000.0, 60_000.0), load)


def test_processes_share_a_load_and_its_clock(stand_in: StandIn) -> None:
    talk = PlannedRequest(9, ("Hello!",), then=NextTurn(0.01, HELLO))
    load = [TimedRequest(0.02 * number, talk if number == 3 else HELLO) for number in range(8)]
    sent = asyncio.run(PartProcesses(part(stand_in.url, load), 2).send())
    figures = sent.figures
    assert figures.requests == figures.good == len(stand_in.asked) == 9 and not sent.interrupted
    assert figures.output_tokens == 9 * 7 and figures.itl_ms.count == 9 * 6 and figures.ended_s > load[-1].due_s


def test_a_load_that_is_cancelled_returns_what_was_measured(stand_in: StandIn) -> None:
    async def cancelled() -> int:
        talk = PlannedRequest(9, ("Hello!",), then=NextTurn(0.0, HELLO))
        load = 2 * [TimedRequest(0.0, talk)] + 2 * [TimedRequest(600.0, HELLO)]
        parts = PartProcesses(part(stand_in.url, load), 2)
        sending = asyncio.ensure_future(parts.send())
        while parts.ended < 4 and not sending.done():  # as the processes tell
            await asyncio.sleep(0.02)
        assert parts.sent == 4
        sending.cancel()
        sent = await sending
        assert sent.interrupted
        return sent.figures.requests

    assert asyncio.run(cancelled()) == 4


def test_a_load_has_as_many_processes_as_its_tokens_need() -> None:
    load = [TimedRequest(number / 100, PlannedRequest(250)) for number in range(1001)]  # 25,000 tokens/s
    assert processes_for(load, 8) == 3 and processes_for(load, 2) == 2 and processes_for(load[:1], 8) == 1
