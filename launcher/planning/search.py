"""Searches the cheapest deployment: estimates all, simulates the cheapest, and adds workers to those that miss."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from launcher.planning.trial import SimulatedPlan
from pricing.planning.candidates import CopyFormat, PlannedDeployment, candidates
from pricing.planning.load import PlannedLoad
from pricing.planning.roles import ModelCopy

MAX_ADDED_WORKERS = 3
"""Most workers that are added to a deployment, one after the other, while its simulation misses the objective."""

Simulate = Callable[[PlannedDeployment], SimulatedPlan]


def within(
    copies: Mapping[CopyFormat, Sequence[ModelCopy]], load: PlannedLoad, available: Mapping[str, int]
) -> list[PlannedDeployment]:
    """Returns the deployments that fit the available devices, the cheapest first."""
    return [each for each in candidates(copies, load) if each.within(available)]


def simulated(
    found: Sequence[PlannedDeployment], load: PlannedLoad, count: int, available: Mapping[str, int], simulate: Simulate
) -> Iterator[SimulatedPlan]:
    """Yields trials of the cheapest `count` deployments, and of the cheapest in 16 bits if it is not among them."""
    alike: dict[object, PlannedDeployment] = {}
    for each in found:
        workers = tuple((role.copy.name, role.workers) for role in each.roles)
        alike.setdefault((workers, each.form.weights), each)  # the first of those that differ only in KV
    chosen = list(alike.values())[:count]
    exact = next((each for each in found if not each.form.changes), None)
    if exact is not None and exact not in chosen:
        chosen.append(exact)
    for deployment in chosen:
        trial = simulate(deployment)
        yield trial
        for _ in range(MAX_ADDED_WORKERS):
            more = None if trial.passed else _strengthened(trial, load)
            if more is None or not more.within(available):
                break
            trial = simulate(more)
            yield trial


def _strengthened(trial: SimulatedPlan, load: PlannedLoad) -> PlannedDeployment | None:
    """Returns the deployment with one worker more in the role whose limit is missed more often."""
    missed = trial.report.missed
    if trial.deployment.prefill is not None and missed.ttft >= missed.tpot:
        return trial.deployment.with_workers(load, 1, 0)
    return trial.deployment.with_workers(load, 0, 1)
