"""Step costs to price with: a worker's own as far as they are fresh, else pooled over workers of its kind.

    ĉ = median + min(1, 2·r/r_max)·(own - median),    r = n/(n + n₀) · exp(-Δ/τ)

r is the trust in a worker's own costs: n steps learned, n₀ = PRIOR_STEPS, Δ seconds since its last step relative to the
newest step of its kind, τ = COSTS_MEMORY_S. The median is over the workers of its kind with r ≥ r_max/2.

Without this term, costs that are too high would last for ever: the worker gets no requests, runs no steps, and nothing
corrects them.
"""

from collections.abc import Iterable
from math import exp
from statistics import median

from msgspec import structs

from pricing.candidate import Candidate, WorkerKind
from pricing.steps import StepCosts

COSTS_MEMORY_S = 10.0  # time constant, in seconds, of the trust in costs, while another worker of the kind learns
PRIOR_STEPS = 8.0  # steps after which a worker's costs are half learned, half seed
COEFFICIENT_NAMES = ("step", "prompt_token", "pair", "sequence", "context_token")


def pooled_costs(workers: Iterable[Candidate]) -> dict[str, StepCosts]:
    """Returns the costs to price with, by the workers' epochs. Where no worker of a kind has run a step: its own."""
    kinds: dict[WorkerKind, list[Candidate]] = {}
    for worker in workers:
        kinds.setdefault(worker.kind, []).append(worker)
    found = {}
    for same in kinds.values():
        newest = max([worker.learned_at for worker in same if worker.costs.steps], default=0.0)
        trusts = [_trust(worker, newest) for worker in same]
        most = max(trusts)
        trusted = [worker.costs for worker, trust in zip(same, trusts, strict=True) if trust >= most / 2]
        for worker, trust in zip(same, trusts, strict=True):
            share = min(1.0, 2 * trust / most) if most else 1.0
            found[worker.epoch] = worker.costs if share == 1.0 else _mixed(worker.costs, trusted, share)
    return found


def _trust(worker: Candidate, newest: float) -> float:
    steps = worker.costs.steps
    return steps / (steps + PRIOR_STEPS) * exp(-max(0.0, newest - worker.learned_at) / COSTS_MEMORY_S)


def _mixed(own: StepCosts, trusted: list[StepCosts], share: float) -> StepCosts:
    """Returns coefficients with weight `share` on the worker's own, and the rest on the trusted workers' medians."""
    mixed = {}
    for name in COEFFICIENT_NAMES:
        others = median([getattr(costs, name) for costs in trusted])
        mixed[name] = others + share * (getattr(own, name) - others)
    return structs.replace(own, **mixed)
