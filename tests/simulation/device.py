"""A device and requests for tests of simulated deployments."""

import random
from collections.abc import Sequence
from itertools import takewhile

from contracts.slo import SLO
from pricing.step_costs.steps import StepCosts
from simulation.deployment import SimulatedDeployment, SimulatedDevice
from workloads.arrivals import Arrivals
from workloads.lengths import Lengths
from workloads.outcome import RequestOutcome
from workloads.report import Report, make_report
from workloads.request import TimedRequest, Workload, timed

STEP_COSTS = StepCosts(step=0.01, prompt_token=1e-4, pair=1e-9, sequence=2e-4, context_token=1e-7, most_tokens=512)
DEVICE = SimulatedDevice(
    name="test",
    seconds=STEP_COSTS.seconds,
    costs=STEP_COSTS,
    token_bytes=32768,
    blocks=2000,
    step_tokens=512,
    step_target_s=0.1,
)
SLO_OF_TESTS = SLO(1000.0, 40.0)


def deployment(prefill: int, decode: int, repeats: int = 1) -> SimulatedDeployment:
    return SimulatedDeployment(prefill=prefill, decode=decode, device=DEVICE, repeats=repeats)


def requests(rate: float, seconds: float, seed: int = 1, shared: int = 0) -> Sequence[TimedRequest]:
    chance = random.Random(seed)
    times = takewhile(lambda at: at < seconds, Arrivals(rate).times(chance))
    return list(timed(times, Workload(Lengths(50, 1500), Lengths(5, 60), shared).requests(chance), 1 << 20))


def report(outcomes: Sequence[RequestOutcome]) -> Report:
    return make_report(outcomes, SLO_OF_TESTS, server="simulated", model="test", load={})
