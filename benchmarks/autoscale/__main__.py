"""Compares scaling policies on a simulated day: `python -m benchmarks.autoscale [--peak 4] [--seed 0]`.

Workers take the cost model's seconds; a new worker serves after `--start` seconds, a removed one drains. The policy of
`baton up --autoscale` stands beside fixed thresholds, the smallest fixed deployment with as many good requests, and the
best fixed deployment of no more worker-hours. Good requests meet their objective, `--slo`.
"""

import argparse
from collections.abc import Callable
from itertools import product

from benchmarks.autoscale.simulation import Came, Machine, Scaler, Simulation
from benchmarks.autoscale.thresholds import Thresholds
from benchmarks.autoscale.trace import DAY_S, Day
from benchmarks.processes.children import exit_status
from benchmarks.report import head, row
from contracts.slo import SLO, parse_objective
from launcher.autoscale.policy import ScalingPolicy
from launcher.autoscale.rules import Bounds, Rules
from launcher.stages import StageDisplay
from pricing.steps import StepCosts

WORKER_COSTS = StepCosts(
    step=0.053, prompt_token=2.7e-4, pair=1e-8, sequence=1e-4, context_token=4.4e-7, most_tokens=2048, steps=1000
)
"""A model of 8B parameters in bf16 on a GPU of 300 GB/s, 60 TFLOP/s and 24 GB: a step reads 16 GB of weights and 131 kB
of KV for each token, and a prompt's token is 16 GFLOP."""
KV_BLOCKS = 2800  # of 16 tokens, in 6 GB
MAX_WORKERS = 12  # workers of a role
MAX_SHARE_LACKING = 0.001  # of all requests; a smaller gap counts as none
COLUMNS = "workers", "good requests", "worker-hours", "good per worker-hour", "changes", "most in an hour", "reversals"


class Comparison:
    """Runs one day with one scaler after the other."""

    def __init__(self, given: argparse.Namespace, stages: StageDisplay) -> None:
        self._given, self._stages = given, stages
        self.slo = parse_objective(given.slo).limits(SLO(2000.0, 100.0))
        self.machine = Machine(WORKER_COSTS, KV_BLOCKS, given.start)
        bounds = Bounds(1, MAX_WORKERS)
        self.rules = Rules({"prefill": bounds, "decode": bounds}, self.slo, given.up, given.down)
        self._fixed: dict[tuple[int, int], Came] = {}

    def run(self, name: str, scaler: Scaler | None, prefill: int, decode: int) -> Came:
        day = Day(self._given.peak, self._given.seed, self._given.seconds)
        simulation = Simulation(self.machine, self.slo, scaler, prefill, decode)
        return simulation.run(day.arrivals(), self._progress(name))

    def fixed(self, prefill: int, decode: int) -> Came:
        if (prefill, decode) not in self._fixed:
            self._fixed[prefill, decode] = self.run(f"fixed {prefill} + {decode}", None, prefill, decode)
        return self._fixed[prefill, decode]

    def fewest_as_good(self, share: float) -> tuple[int, int]:
        numbers = range(1, MAX_WORKERS + 1)
        for pair in sorted(product(numbers, numbers), key=lambda one: (sum(one), one)):
            if all(self._enough(*one, share) for one in ((pair[0], MAX_WORKERS), (MAX_WORKERS, pair[1]), pair)):
                return pair
        return MAX_WORKERS, MAX_WORKERS

    def best_within(self, hours: float) -> tuple[int, int]:
        total = max(2, int(hours * 3600 / self._given.seconds))
        pairs = [
            (prefill, total - prefill)
            for prefill in range(max(1, total - MAX_WORKERS), min(MAX_WORKERS, total - 1) + 1)
        ]
        return max(pairs, key=lambda one: self.fixed(*one).good)

    def _enough(self, prefill: int, decode: int, share: float) -> bool:
        came = self.fixed(prefill, decode)
        return came.good / came.requests >= share

    def _progress(self, name: str) -> Callable[[float], None]:
        shown = -1

        def show(now: float) -> None:
            nonlocal shown
            if (percent := min(100, int(100 * now / self._given.seconds))) >= shown + 5:
                shown = percent
                self._stages.show("day", name, percent)

        return show


def line(name: str, came: Came) -> str:
    hours = came.worker_seconds / 3600
    good = f"{came.good / came.requests:.2%}", f"{hours:.1f}", f"{came.good / hours:.0f}"
    return row(name, *good, came.changes, came.most_in_an_hour, came.reversals)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscale", description=__doc__)
    parser.add_argument("--peak", type=float, default=4.0, help="requests/s in the afternoon")
    parser.add_argument("--slo", default="ttft=2s,tpot=100ms")
    parser.add_argument("--start", type=float, default=90.0, help="s that a worker takes to start")
    parser.add_argument("--up", type=float, default=30.0, help="s after a change before a worker is added")
    parser.add_argument("--down", type=float, default=300.0, help="s after a change before one is removed")
    parser.add_argument("--seconds", type=float, default=DAY_S, help="that the day lasts")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    def work(stages: StageDisplay) -> None:
        comparison = Comparison(given, stages)
        policy = comparison.run("policy", ScalingPolicy(comparison.rules, 0.0), 2, 2)
        thresholds = comparison.run("thresholds", Thresholds(comparison.rules), 2, 2)
        least = comparison.fewest_as_good(policy.good / policy.requests - MAX_SHARE_LACKING)
        same = comparison.best_within(policy.worker_seconds / 3600)
        stages.settle()
        print(f"{policy.requests} requests, {given.slo}; a worker starts in {given.start:g} s")
        print(head(*COLUMNS))
        print(line("policy", policy))
        print(line("thresholds", thresholds))
        for name, pair in (("fewest as good", least), ("best for as many hours", same)):
            print(line(f"{pair[0]} + {pair[1]}, {name}", comparison.fixed(*pair)))

    return exit_status(work)


if __name__ == "__main__":
    raise SystemExit(main())
