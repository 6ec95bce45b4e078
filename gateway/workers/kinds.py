"""Says what to believe of workers' costs: their own as far as they are fresh, else those of their kind. Pure.

A worker whose costs are too high gets no requests, so it runs no steps, and nothing corrects them: a start that was
measured beside others, or the seed of one that has never decoded, would last for ever. What workers of one kind have
learned is a better guess than what one of them has learned from a few steps, or long ago.
"""

from collections.abc import Iterable
from math import exp
from statistics import median
from typing import NamedTuple

from msgspec import structs

from gateway.workers.worker import Worker
from infra.redis.records import WorkerRecord
from pricing.steps import StepCosts

FRESH = 10.0
"""Seconds after which what a worker knows counts 1/e, if it has learned nothing since and another one has."""
FEW = 8.0
"""Steps from which a worker has learned as much as it had guessed."""
COEFFICIENTS = ("step", "prompt_token", "pair", "sequence", "context_token")


class Kind(NamedTuple):
    """Tells workers apart whose steps should not take the same."""

    role: str
    content: str  # whose KV means the same: one model, in one dtype
    device: str


def kind_of(record: WorkerRecord) -> Kind:
    """Returns the kind of a worker."""
    return Kind(record.role, record.content, record.device)


def trust(worker: Worker, newest: float) -> float:
    """Returns how much its own costs say about it, 0 to 1, where one of its kind has learned at `newest`, local s."""
    steps = worker.costs.steps
    return steps / (steps + FEW) * exp(-max(0.0, newest - worker.learned_at) / FRESH)


def believed(workers: Iterable[Worker]) -> dict[str, StepCosts]:
    """Returns the costs to reckon with for each worker, by its epoch.

    Its own, if it is trusted at least half as much as the one of its kind that is trusted most; with less, more and
    more the median of those that are. Where nobody of a kind has run a step, all keep their own.
    """
    kinds: dict[Kind, list[Worker]] = {}
    for worker in workers:
        kinds.setdefault(kind_of(worker.record), []).append(worker)
    found = {}
    for some in kinds.values():
        newest = max([worker.learned_at for worker in some if worker.costs.steps], default=0.0)
        trusts = [trust(worker, newest) for worker in some]
        most = max(trusts)
        known = [worker.costs for worker, trusted in zip(some, trusts, strict=True) if trusted >= most / 2]
        for worker, trusted in zip(some, trusts, strict=True):
            share = min(1.0, 2 * trusted / most) if most else 1.0
            found[worker.record.epoch] = worker.costs if share == 1.0 else _between(worker.costs, known, share)
    return found


def _between(own: StepCosts, known: list[StepCosts], share: float) -> StepCosts:
    """Returns `share` of a worker's own coefficients, and the rest of the others' medians."""
    mixed = {}
    for name in COEFFICIENTS:
        others = median([getattr(costs, name) for costs in known])
        mixed[name] = others + share * (getattr(own, name) - others)
    return structs.replace(own, **mixed)
