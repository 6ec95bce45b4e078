"""Compares orders in which a prefill worker computes prompts, on one trace.

    python -m benchmarks.simulated.order [--load 0.9]

The worker is that of `simulation/`: scheduler, queue, blocks and role are real, and steps take the cost model's seconds
on a simulated clock. One prompt in ten is long. *First come* computes prompts in order of arrival, *shortest first* by
length, *ours* by tenants, urgency and shares. The second table has one tenant that floods, and the TTFT of another
tenant, over its TTFT without the flood.
"""

import argparse
import random
from collections.abc import Iterable
from functools import partial
from math import inf
from typing import Any, NamedTuple

from msgspec import structs

from benchmarks.report import head, row
from contracts.ids import Ticket
from contracts.messages.job import DecodeJob, Prompt
from contracts.messages.sampling import Limits, Sampling
from contracts.slo import percentile
from engine.schedule.prompt_turns import SHORTER_PROMPTS_SHARE
from pricing.step_costs.steps import StepCosts, StepWork, pairs_of
from simulation.deployment import SimulatedDevice
from simulation.timeline import Timeline
from simulation.worker import SimulatedWorker
from worker.events import Emit

WORKER_COSTS = StepCosts(step=0.004, prompt_token=1e-4, pair=1e-8)
"""A worker that computes some 9,000 tokens a second."""
STEP_TOKENS = 512
SHORT_PROMPT_TOKENS, LONG_PROMPT_TOKENS = (32, 512), (4096, 16384)  # tokens, evenly drawn
LONG_SHARE = 0.1
TTFT_OBJECTIVE_S = 2.0  # s until the first token
POLICIES = ("first come", "shortest first", "ours")
PREFILL_DEVICE = SimulatedDevice(
    name="benchmark",
    seconds=WORKER_COSTS.seconds,
    costs=WORKER_COSTS,
    token_bytes=64,
    blocks=1 << 16,
    step_tokens=STEP_TOKENS,
    max_model_len=1 << 20,
)


class Arrival(NamedTuple):
    """A prompt of the trace."""

    at: float  # s
    tokens: int
    tenant: str


class Served(NamedTuple):
    """Says when a prompt had its first token."""

    arrival: Arrival
    ttft: float  # s


def trace(draw: random.Random, seconds: float, rate: float, tenant: str) -> list[Arrival]:
    arrivals, at = [], 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        tokens = draw.randint(*(LONG_PROMPT_TOKENS if draw.random() < LONG_SHARE else SHORT_PROMPT_TOKENS))
        arrivals.append(Arrival(at, tokens, tenant))
    return arrivals


class _FirstTokens:
    """Sends a worker its prompts when they come, and notes when each has its first token, which is its last."""

    def __init__(self, arrivals: Iterable[Arrival], policy: str) -> None:
        self.timeline = Timeline()
        self.served: list[Served] = []
        self._arrivals = list(arrivals)
        self._policy = policy
        shorter = SHORTER_PROMPTS_SHARE if policy == "ours" else 0.0
        self._worker = SimulatedWorker(
            self.timeline, "worker", "decode", structs.replace(PREFILL_DEVICE, shorter_share=shorter), self
        )
        for number, arrival in enumerate(self._arrivals):
            self.timeline.at(arrival.at, partial(self._sends, number))

    def _sends(self, number: int) -> None:
        arrival = self._arrivals[number]
        tenant = arrival.tenant if self._policy == "ours" else ""
        tokens = [1] * arrival.tokens
        due = {"first come": inf, "shortest first": 1e9 + arrival.tokens, "ours": arrival.at + TTFT_OBJECTIVE_S}
        job = DecodeJob(
            request=str(number),
            attempt=1,
            sender="benchmark",
            receiver="worker",
            prompt=Prompt(tokens, len(tokens), salt=str(number), tenant=tenant),
            sampling=Sampling(seed=0),
            limits=Limits(max_tokens=1),
            deadline=inf,
            queued_at=arrival.at,
            due=due[self._policy],
        )
        self._worker.take(job, Ticket(number, 0))

    def posted(self, worker: SimulatedWorker, event: Any) -> None:
        if isinstance(event, Emit):
            for emitted in event.emitted:
                arrival = self._arrivals[int(emitted.key.request)]
                self.served.append(Served(arrival, self.timeline.now - arrival.at))


def serve(arrivals: Iterable[Arrival], policy: str) -> list[Served]:
    """Simulates the worker until each prompt has its first token."""
    simulation = _FirstTokens(arrivals, policy)
    simulation.timeline.run(lambda: False)
    return simulation.served


def _row(name: str, served: list[Served]) -> str:
    cells = []
    for lengths in (SHORT_PROMPT_TOKENS, LONG_PROMPT_TOKENS):
        times = [each.ttft for each in served if lengths[0] <= each.arrival.tokens <= lengths[1]]
        cells += [f"{percentile(times, share):.2f}" for share in (0.5, 0.95)]
        cells.append(f"{max(times):.1f}")
    good = sum(each.ttft <= TTFT_OBJECTIVE_S for each in served) / len(served)
    return row(name, *cells, f"{good:.0%}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated.order", description=__doc__)
    parser.add_argument("--load", type=float, default=0.9, help="of what the worker can compute")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the trace, on its own clock")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    mean = LONG_SHARE * sum(LONG_PROMPT_TOKENS) / 2 + (1 - LONG_SHARE) * sum(SHORT_PROMPT_TOKENS) / 2
    full = 1 / (
        WORKER_COSTS.seconds(StepWork(STEP_TOKENS, pairs_of(4096, STEP_TOKENS))) / STEP_TOKENS * mean
    )  # prompts/s
    arrivals = trace(random.Random(given.seed), given.seconds, given.load * full, "")
    print(f"{len(arrivals)} prompts in {given.seconds:g} s, {given.load:.0%} of a worker; TTFT in s")
    print(head("order", "short p50", "p95", "worst", "long p50", "p95", "worst", "within 2 s"))
    for policy in POLICIES:
        print(_row(policy, serve(arrivals, policy)), flush=True)
    draw = random.Random(given.seed)
    quiet = trace(draw, given.seconds, 0.25 * full, "quiet")
    share = trace(draw, given.seconds, 0.5 * full, "flood")
    flood = trace(draw, given.seconds, 2.0 * full, "flood")
    print("\na tenant that floods with twice what the worker can compute; p95 of the other's TTFT in s")
    print(head("order", "beside its share", "beside the flood", "ratio"))
    for policy in POLICIES:
        beside = [
            percentile([each.ttft for each in serve([*quiet, *other], policy) if each.arrival.tenant == "quiet"], 0.95)
            for other in (share, flood)
        ]
        print(row(policy, f"{beside[0]:.2f}", f"{beside[1]:.2f}", f"{beside[1] / beside[0]:.2f}"), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
