"""Sends the loads that the options of `baton bench` describe, and sums up each as a report."""

import asyncio
import os
import random
from collections.abc import Coroutine, Sequence
from itertools import islice
from typing import Any

import msgspec
import uvloop

from infra.cli import spell
from infra.process.ending import end
from infra.process.tasks import child
from launcher.bench.load_options import MAX_LOAD_REQUESTS
from launcher.bench.options import BenchConfig
from launcher.bench.parts import LoadPart, SentLoad, processes_for, send_in_parts
from launcher.bench.rates import trial_seconds
from launcher.bench.run_mark import marked
from launcher.bench.sender import Sender, connections_to
from launcher.instance.endpoint import ClientEndpoint
from launcher.stages import StageDisplay
from workloads.figures import LoadFigures
from workloads.goodput import Trial
from workloads.report import Report, report_of
from workloads.request import PlannedRequest, TimedRequest

PROGRESS_PERIOD_S = 0.5


class BenchRun:
    """Measures one endpoint, once or at several rates; each load has arrivals and prompts of its own."""

    def __init__(self, config: BenchConfig, endpoint: ClientEndpoint, model: str, stages: StageDisplay) -> None:
        self._endpoint = endpoint
        self._model = model
        self.stages = stages
        self._seed = config.seed
        self._warm = False

    def trial(self, config: BenchConfig, rate: float) -> Trial:
        at_rate = msgspec.structs.replace(config, rate=rate, seconds=trial_seconds(config, rate))
        return Trial(rate, self.load(at_rate, give_up=True), config.share)

    def load(self, config: BenchConfig, give_up: bool = False) -> Report:
        """Sends one load. Ctrl-C ends it, and the report then says so. Raises `BatonError`.

        `give_up`: requests that can no longer be good are not waited for.
        """
        self._seed += 1
        with marked(self._endpoint, f"bench {_name(config)}"):
            sent = uvloop.run(self._send(config, random.Random(self._seed), give_up))
        return report_of(
            sent.figures,
            server=self._endpoint.url,
            model=self._model,
            load={each.option: each.text for each in spell(config) if not each.usual},
            interrupted=sent.interrupted,
        )

    async def _send(self, config: BenchConfig, chance: random.Random, give_up: bool) -> SentLoad:
        figures = LoadFigures(slo=config.slo())
        requests = config.workload().requests(chance)
        load = list(config.timed_requests(chance)) if not config.concurrency else []
        async with connections_to(self._endpoint, config.timeout) as connections:
            if not self._warm:
                self.stages.show("bench", "warming up")
                warm_up = Sender(connections, self._model, config.vocabulary, lambda _: None)
                for _ in range(config.warm_up):
                    await warm_up.exchange(next(requests), 0.0)
                self._warm = True
            sender = Sender(connections, self._model, config.vocabulary, figures.add)
            if config.concurrency:
                some = islice(requests, config.requests or MAX_LOAD_REQUESTS)
                sending = sender.closed_load(some, config.concurrency, config.seconds)
                return SentLoad(figures, await self._interrupted(config, sender, sending, 0))
            linger_s = _longest_good_s(config, load) if give_up else None
            processes = config.processes or processes_for(load, os.cpu_count() or 1)
            if processes == 1:
                sending = sender.open_load(load, linger_s)
                return SentLoad(figures, await self._interrupted(config, sender, sending, planned_turns(load)))
        self.stages.show("bench", f"sending {planned_turns(load)} requests from {processes} processes")
        part = LoadPart(self._endpoint, self._model, config.vocabulary, config.timeout, linger_s, config.slo(), load)
        return await send_in_parts(part, processes)

    async def _interrupted(
        self, config: BenchConfig, sender: Sender, sending: Coroutine[Any, Any, None], planned: int
    ) -> bool:
        """Shows the progress of a load; returns whether Ctrl-C ended it."""
        progress = child(self._show(sender, config, planned))
        try:
            await sending
        except asyncio.CancelledError:
            return True  # what was measured until then is reported
        finally:
            await end([progress])
        return False

    async def _show(self, sender: Sender, config: BenchConfig, planned: int) -> None:
        of = f" of {planned}" if planned else ""
        while True:
            percent = 100 * sender.ended // planned if planned else None
            self.stages.show(
                _name(config), "sending", percent, f"{sender.sent}{of} sent, {sender.sent - sender.ended} in progress"
            )
            await asyncio.sleep(PROGRESS_PERIOD_S)


def _name(config: BenchConfig) -> str:
    if config.concurrency:
        return f"{config.concurrency} clients"
    return "trace" if config.trace else f"{config.rate:.3g}/s"


def planned_turns(load: Sequence[TimedRequest]) -> int:
    return sum(1 for each in load for _ in each.request.turns())


def _longest_good_s(config: BenchConfig, load: Sequence[TimedRequest]) -> float:
    """Returns the longest time, s, that an answer or conversation of the load takes if it keeps both limits."""
    return max((sum(_turn_s(config, turn) for turn in each.request.turns()) for each in load), default=0.0)


def _turn_s(config: BenchConfig, turn: PlannedRequest) -> float:
    pause = turn.then.pause_s if turn.then is not None else 0.0
    return pause + (config.slo_ttft_ms + config.slo_tpot_ms * (turn.output_tokens - 1)) / 1000
