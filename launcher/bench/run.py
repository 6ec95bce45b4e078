"""Sends the loads that the options of `baton bench` describe, and sums up each as a report."""

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import uvloop

from infra.cli import spell
from infra.process.ending import end
from infra.process.tasks import child
from launcher.bench.load_options import MAX_LOAD_REQUESTS
from launcher.bench.options import BenchConfig
from launcher.bench.parts import LoadPart, PartProcesses, SentLoad, processes_for
from launcher.bench.run_mark import marked
from launcher.bench.sender import Sender, connections_to
from launcher.instance.endpoint import ClientEndpoint
from launcher.stages import StageDisplay
from workloads.figures import LoadFigures
from workloads.report import Report, report_of
from workloads.request import PlannedRequest, TimedRequest

PROGRESS_PERIOD_S = 0.5


class BenchRun:
    """Measures one endpoint, once or at several rates; each load has arrivals and prompts of its own."""

    def __init__(self, endpoint: ClientEndpoint, model: str, stages: StageDisplay) -> None:
        self._endpoint = endpoint
        self._model = model
        self.stages = stages
        self._loads = 0

    def load(self, config: BenchConfig, give_up: bool = False) -> Report:
        """Sends one load. Ctrl-C ends it, and the report then says so. Raises `BatonError`.

        `give_up`: requests that can no longer be good are not waited for.
        """
        number = self._loads
        self._loads += 1
        with marked(self._endpoint, f"bench {_name(config)}"):
            sent = uvloop.run(self._send(config, number, give_up))
        return report_of(
            sent.figures,
            server=self._endpoint.url,
            model=self._model,
            load={each.option: each.text for each in spell(config) if not each.usual},
            interrupted=sent.interrupted,
        )

    async def _send(self, config: BenchConfig, number: int, give_up: bool) -> SentLoad:
        """Sends the load of this number, behind the warm-up if it is the first."""
        figures, chance = LoadFigures(slo=config.slo()), config.chance(number)
        requests = config.workload().requests(chance)
        load = list(config.timed_requests(chance)) if not config.concurrency else []
        async with connections_to(self._endpoint, config.timeout) as connections:
            if not number:
                self.stages.show("bench", "warming up")
                warm_up = Sender(connections, self._model, config.vocabulary, lambda _: None)
                for _ in range(config.warm_up):
                    await warm_up.exchange(next(requests), 0.0)
            sender = Sender(connections, self._model, config.vocabulary, figures.add)
            if config.concurrency:
                some = islice(requests, config.requests or MAX_LOAD_REQUESTS)
                sending = sender.closed_load(some, config.concurrency, config.seconds)
                async with self._shown(config, sender, 0):
                    return SentLoad(figures, await _interrupted(sending))
            linger_s, turns = _longest_good_s(config, load) if give_up else None, planned_turns(load)
            processes = config.processes or processes_for(load, os.cpu_count() or 1)
            if processes == 1:
                async with self._shown(config, sender, turns):
                    return SentLoad(figures, await _interrupted(sender.open_load(load, linger_s)))
        part = LoadPart(self._endpoint, self._model, config.vocabulary, config.timeout, linger_s, config.slo(), load)
        parts = PartProcesses(part, processes)
        async with self._shown(config, parts, turns, f" by {processes} processes"):
            return await parts.send()

    @asynccontextmanager
    async def _shown(
        self, config: BenchConfig, source: Sender | PartProcesses, planned: int, by: str = ""
    ) -> AsyncIterator[None]:
        """Shows the progress of a load while the `async with` block runs. `planned`: its requests; 0: unknown."""
        progress = child(self._show(config, source, planned, by))
        try:
            yield
        finally:
            await end([progress])

    async def _show(self, config: BenchConfig, source: Sender | PartProcesses, planned: int, by: str) -> None:
        of = f" of {planned}" if planned else ""
        while True:
            percent = 100 * source.ended // planned if planned else None
            note = f"{source.sent}{of} sent{by}, {source.sent - source.ended} in progress"
            self.stages.show(_name(config), "sending", percent, note)
            await asyncio.sleep(PROGRESS_PERIOD_S)


async def _interrupted(sending: Coroutine[Any, Any, None]) -> bool:
    """Awaits the end of a load, and returns whether Ctrl-C ended it: what was measured until then is reported."""
    try:
        await sending
    except asyncio.CancelledError:
        return True
    return False


def _name(config: BenchConfig) -> str:
    if config.concurrency:
        return f"{config.concurrency} clients"
    if config.peak:
        return f"{config.rate:.3g} to {config.peak:.3g}/s"
    return "trace" if config.trace else f"{config.rate:.3g}/s"


def planned_turns(load: Sequence[TimedRequest]) -> int:
    return sum(1 for each in load for _ in each.request.turns())


def _longest_good_s(config: BenchConfig, load: Sequence[TimedRequest]) -> float:
    """Returns the longest time, s, that an answer or conversation of the load takes if it keeps both limits."""
    return max((sum(_turn_s(config, turn) for turn in each.request.turns()) for each in load), default=0.0)


def _turn_s(config: BenchConfig, turn: PlannedRequest) -> float:
    pause = turn.then.pause_s if turn.then is not None else 0.0
    return pause + (config.slo_ttft_ms + config.slo_tpot_ms * (turn.output_tokens - 1)) / 1000
