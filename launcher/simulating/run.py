"""Runs a load over a simulated deployment, shows its progress, and sums up what its clients would see."""

import time
from collections.abc import Mapping
from typing import NamedTuple

from contracts.errors import ConfigError
from infra.cli import spell
from launcher.bench.load_options import LoadOptions
from launcher.stages import StageDisplay
from simulation.scaling import SimulatedScaling
from simulation.simulation import DeploymentSimulation, SimulatedDeath
from workloads.figures import LoadFigures
from workloads.outcome import RequestOutcome
from workloads.report import Report, report_of

QUIET_S, PROGRESS_PERIOD_S = 2.0, 0.5
"""Real seconds before a simulation shows its progress, and between two looks at it."""


class SimulatedLoad(NamedTuple):
    """Reports of a load: of all requests, and of the requests of each API key; `error`: where its trace is damaged."""

    report: Report
    of_keys: Mapping[str, Report]
    error: ConfigError | None = None


class SimulatedClients:
    """What the clients of a simulation have seen so far. After Ctrl-C the report is of the requests that have ended."""

    def __init__(self, config: LoadOptions, model: str, simulation: DeploymentSimulation, stages: StageDisplay) -> None:
        self._config = config
        self._model = model
        self._simulation = simulation
        self._stages = stages
        self._all = LoadFigures(slo=config.slo())
        self._of_keys: dict[str, LoadFigures] = {}
        self._began = time.monotonic()
        self._look_at = self._began + QUIET_S

    def run(self, deaths: list[SimulatedDeath], scaling: SimulatedScaling | None) -> SimulatedLoad:
        """Raises `ConfigError` for a trace of which nothing can be read."""
        requests = self._config.timed_requests(self._config.chance())
        interrupted, wrong = False, None
        try:
            self._simulation.play(requests, self._ended, deaths, scaling)
            self._simulation.check_conservation()
        except KeyboardInterrupt:
            interrupted = True
        except ConfigError as error:
            if not self._all.requests:
                raise
            interrupted, wrong = True, error
        load = {each.option: each.text for each in spell(self._config) if not each.usual}

        def report(figures: LoadFigures) -> Report:
            return report_of(figures, server="simulated", model=self._model, load=load, interrupted=interrupted)

        return SimulatedLoad(
            report(self._all), {name: report(figures) for name, figures in sorted(self._of_keys.items())}, wrong
        )

    def _ended(self, outcome: RequestOutcome) -> None:
        self._all.add(outcome)
        if outcome.sender:
            self._of_keys.setdefault(outcome.sender, LoadFigures(slo=self._all.slo)).add(outcome)
        if (now := time.monotonic()) >= self._look_at:
            self._look_at = now + PROGRESS_PERIOD_S
            self._show(now - self._began)

    def _show(self, real_s: float) -> None:
        simulated_s, config = self._simulation.timeline.now, self._config
        percent = None if config.trace else min(100, int(100 * simulated_s / config.seconds))
        waiting = len(self._simulation.gateway)
        note = f"{simulated_s:.0f} s, {simulated_s / real_s:.0f} x as fast as time, {self._all.requests} requests ended"
        name = "trace" if config.trace else f"{config.rate:.3g}/s"
        self._stages.show(name, "simulating", percent, f"{note}, {waiting} in progress")
