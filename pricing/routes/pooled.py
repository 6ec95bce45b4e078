"""Step costs with which routes are priced: a worker's own while they are fresh, else the median of its kind.

    ĉ = median + min(1, 2·r/r_max)·(own - median),    r = n/(n + n₀) · exp(-Δ/τ)

r is the trust in a worker's own costs: n steps learned, n₀ = PRIOR_STEPS, Δ seconds since its last step relative to the
newest step of its kind, τ = COSTS_MEMORY_S. The median is over the workers of its kind with r ≥ r_max/2.

Without this term, costs that are too high would last for ever: the worker gets no requests, runs no steps, and nothing
corrects them.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import exp
from statistics import median
from typing import Protocol

from msgspec import structs

from pricing.routes.candidate import WorkerKind
from pricing.step_costs.steps import StepCosts

COSTS_MEMORY_S = 10.0  # time constant, in seconds, of the trust in costs, while another worker of the kind learns
PRIOR_STEPS = 8.0  # steps after which a worker's costs are half learned, half seed
COEFFICIENT_NAMES = ("step", "prompt_token", "pair", "sequence", "context_token")
MAX_WORKERS_IN_MEDIANS = 64
"""Number of trusted workers of a kind over which its medians are taken."""
POOLS_KEPT_S = 0.25
"""Seconds for which the pools of many workers are kept: a quarter of the time between two records of a worker."""


class CostLearner(Protocol):
    """A worker that learns the costs of its steps."""

    @property
    def kind(self) -> WorkerKind: ...

    @property
    def costs(self) -> StepCosts:
        """The costs as it has last reported them."""

    @property
    def learned_at(self) -> float:
        """Local time, s, when the number of steps behind `costs` last grew."""


class CostPool:
    """The step costs that the workers of one kind have learned."""

    def __init__(self, same: Sequence[CostLearner]) -> None:
        self.known = all([worker.costs.known for worker in same])  # by every worker
        self._newest = max([worker.learned_at for worker in same if worker.costs.steps], default=0.0)
        trusts = [_trust(worker, self._newest) for worker in same]
        most = self._most = max(trusts)
        self._trusted = [worker.costs for worker, trust in zip(same, trusts, strict=True) if trust >= most / 2]

    @cached_property
    def medians(self) -> Mapping[str, float]:
        """The median of each coefficient over trusted workers; needed only to price a worker with less trust."""
        some = self._trusted[:MAX_WORKERS_IN_MEDIANS]
        return {name: median([getattr(costs, name) for costs in some]) for name in COEFFICIENT_NAMES}

    def costs_of(self, worker: CostLearner) -> StepCosts:
        """Returns the costs with which to price a worker of this kind; its own costs if no worker has run a step."""
        share = min(1.0, 2 * _trust(worker, self._newest) / self._most) if self._most else 1.0
        if share == 1.0:
            return worker.costs
        own = worker.costs
        mixed = {name: others + share * (getattr(own, name) - others) for name, others in self.medians.items()}
        return structs.replace(own, **mixed)


CostPools = Mapping[WorkerKind, CostPool]


def cost_pools(workers: Iterable[CostLearner]) -> CostPools:
    """Returns the cost pool of each kind of worker."""
    kinds: dict[WorkerKind, list[CostLearner]] = {}
    for worker in workers:
        kinds.setdefault(worker.kind, []).append(worker)
    return {kind: CostPool(same) for kind, same in kinds.items()}


class KeptPools:
    """The cost pools of a gateway's workers, kept for a while if there are many: for a thousand they take 1 ms."""

    def __init__(self) -> None:
        self._pools: CostPools = {}
        self._made_at = float("-inf")  # local time, s

    def of(self, count: int, workers: Iterable[CostLearner], priced: Iterable[CostLearner], now: float) -> CostPools:
        """Returns the cost pools of all `workers`, one for each kind, including the kind of each worker in `priced`.

        `workers`, about `count` of them, are read only if the pools are made anew.
        """
        keeps = count > MAX_WORKERS_IN_MEDIANS and 0 <= now - self._made_at < POOLS_KEPT_S
        if not keeps or not all([each.kind in self._pools for each in priced]):
            self._pools, self._made_at = cost_pools(workers), now
        return self._pools


def _trust(worker: CostLearner, newest: float) -> float:
    steps = worker.costs.steps
    return steps / (steps + PRIOR_STEPS) * exp(-max(0.0, newest - worker.learned_at) / COSTS_MEMORY_S)
