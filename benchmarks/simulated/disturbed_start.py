"""Overloads simulated workers that start from wrong costs: `python -m benchmarks.simulated.disturbed_start`.

Two prefill and two decode workers of a 135M model on a CPU. What they measured at their start is off, each cost by
another factor, and neighbours take the cores: for some steps at a time, these take up to three times as long. A burst
comes, then more requests than the workers can bear, with an objective. The real router predicts, and refuses what it
expects to be late; goodput shows how soon it learns, and whether it keeps what it promises.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from itertools import takewhile
from math import exp
from typing import NamedTuple

from msgspec import structs

from benchmarks.processes.children import exit_status
from benchmarks.report import head, row
from contracts.slo import SLO, Objective
from launcher.stages import StageDisplay
from pricing.routes.pooled import COEFFICIENT_NAMES
from pricing.step_costs.steps import StepCosts, StepWork
from simulation.deployment import SimulatedDeployment, SimulatedDevice
from simulation.simulation import DeploymentSimulation
from workloads.arrivals import Arrivals
from workloads.lengths import Lengths
from workloads.request import Workload, timed

TRUE_COSTS = StepCosts(step=0.0105, prompt_token=0.0011, pair=4.8e-7, sequence=0.00045, context_token=3.5e-6)
"""Of a core of its own."""
SLOWED_BY = (1.0, 1.2, 1.5, 2.0, 3.0)
MAX_SLOWED_STEPS = 10
WARM_UP_REQUESTS, BURST_REQUESTS = 4, 48
BURST_AT_S, LOAD_AT_S = 2.0, 12.0
TTFT_LIMIT_MS, TPOT_LIMIT_MS = 2000.0, 250.0
PROMPT_TOKENS, OUTPUT_TOKENS = 256, 32
VOCABULARY_TOKENS = 49_152
REQUESTS_PER_S = 7.0
LOAD_S = 30.0


class DisturbedOutcome(NamedTuple):
    """Counts of the requests behind the burst, and the median error of all predicted first tokens."""

    sent: int
    accepted: int
    good: int
    error: float


def seed_of(chance: random.Random) -> StepCosts:
    """Returns what a start measures beside three others: a factor for all costs, and one for each."""
    slowed = 10 ** chance.uniform(-0.2, 0.6)
    wrong = {name: getattr(TRUE_COSTS, name) * slowed * exp(chance.gauss(0, 0.7)) for name in COEFFICIENT_NAMES}
    return structs.replace(TRUE_COSTS, **wrong, told_apart=chance.random() < 0.5)


def seconds_of(chance: random.Random) -> Callable[[StepWork], float]:
    """Returns the seconds of steps on cores that neighbours take for some steps at a time."""

    def factors() -> Iterator[float]:
        while True:
            slowed = chance.choice(SLOWED_BY)
            for _ in range(chance.randint(1, MAX_SLOWED_STEPS)):
                yield slowed * chance.uniform(0.9, 1.2)

    some = factors()
    return lambda work: TRUE_COSTS.seconds(work) * next(some)


def simulate(seed: int, rate: float = REQUESTS_PER_S, seconds: float = LOAD_S) -> DisturbedOutcome:
    chance = random.Random(seed)
    device = SimulatedDevice(
        name="135M on a shared CPU",
        costs=seed_of(chance),
        seconds=seconds_of(chance),
        token_bytes=23_040,
        blocks=727,
        step_tokens=512,
        max_model_len=8192,
    )
    objective = Objective(TTFT_LIMIT_MS, TPOT_LIMIT_MS)
    simulation = DeploymentSimulation(SimulatedDeployment(prefill=2, decode=2, device=device, objective=objective))
    load = takewhile(lambda at: at < seconds, Arrivals(rate).times(chance))
    before = [0.0] * WARM_UP_REQUESTS + [BURST_AT_S] * BURST_REQUESTS
    requests = Workload(Lengths(PROMPT_TOKENS, PROMPT_TOKENS), Lengths(OUTPUT_TOKENS, OUTPUT_TOKENS)).requests(chance)
    coming = list(timed(iter([*before, *[LOAD_AT_S + at for at in load]]), requests, VOCABULARY_TOKENS))
    outcomes = simulation.run(coming)[len(before) :]
    simulation.check_conservation()
    answered = [each.timings for each in outcomes if each.timings is not None]
    good = sum(SLO(TTFT_LIMIT_MS, TPOT_LIMIT_MS).met_by(each) for each in answered)
    return DisturbedOutcome(len(outcomes), len(answered), good, simulation.gateway.predicted().median_error)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated.disturbed_start", description=__doc__)
    parser.add_argument("--starts", type=int, default=32, help="simulated starts, each with other wrong costs")
    parser.add_argument("--rate", type=float, default=REQUESTS_PER_S, help="requests/s behind the burst")
    parser.add_argument("--seconds", type=float, default=LOAD_S, help="of the load behind the burst")
    given = parser.parse_args()

    def work(stages: StageDisplay) -> None:
        print(head("requests/s", "sent", "accepted", "met", "goodput/s", "least goodput/s", "error of predicted TTFT"))
        found = [simulate(seed, given.rate, given.seconds) for seed in range(given.starts)]
        sent, accepted = sum(each.sent for each in found), sum(each.accepted for each in found)
        good = sum(each.good for each in found)
        goodput = good / given.seconds / len(found)
        least = min(each.good for each in found) / given.seconds
        error = sum(each.error for each in found) / len(found)
        met = f"{good / accepted:.1%}" if accepted else ""
        print(row(given.rate, sent, accepted, met, f"{goodput:.2f}", f"{least:.2f}", f"{error:.0%}"))

    return exit_status(work)


if __name__ == "__main__":
    raise SystemExit(main())
