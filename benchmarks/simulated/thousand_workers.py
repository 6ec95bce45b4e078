"""Simulates chats on many workers: `python -m benchmarks.simulated.thousand_workers [--requests N] [--workers N]`.

The load is a chat service's: prompts of 480 tokens on average (log-normal, half of them below 350) behind a system
prompt of 64 that all share, answers of 150 (half below 120), and Poisson arrivals at a rate at which unsplit H100s of
an 8B model compute for about 60% of the time. It says what a request costs in processor time of one core.
"""

import argparse
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import structs

from benchmarks.models.shapes import write_config
from contracts.slo import SLO
from infra.config.gateway import GatewayConfig
from launcher.simulating.options import SimulateConfig
from launcher.simulating.simulate import simulated_deployment
from simulation.simulation import DeploymentSimulation
from workloads.arrivals import Arrivals
from workloads.figures import LoadFigures
from workloads.lengths import Lengths
from workloads.request import TimedRequest, Workload

CHAT_WORKLOAD = Workload(prompt=Lengths(350, 350, 0.8), output=Lengths(120, 120, 0.67), shared_tokens=64)
CHAT_SLO = SLO(ttft_ms=500.0, tpot_ms=20.0)
BLOCK_TOKENS = 64
REQUESTS_PER_WORKER_S = 1.2
"""Arrivals per second and worker at which a worker computes for about 60% of the time."""
MAX_ANSWERS_PER_WORKER = 64
REQUESTS_PER_LINE = 10_000
"""Requests between two lines of progress."""


def chats(count: int, rate: float, seed: int) -> Iterator[TimedRequest]:
    """Yields `count` chats that arrive `rate` times a second."""
    chance = random.Random(seed)
    arrivals, requests = Arrivals(rate).times(random.Random(seed + 1)), CHAT_WORKLOAD.requests(chance)
    for _, at, request in zip(range(count), arrivals, requests, strict=False):
        yield TimedRequest(at, request)


def simulated(given: argparse.Namespace) -> DeploymentSimulation:
    """Makes the deployment: workers on H100s with an 8B model in bf16, and one gateway for all workers."""
    with TemporaryDirectory() as folder:
        write_config(Path(folder), "llama-3.1-8b")
        config = SimulateConfig(
            model=folder,
            prefill=given.prefill,
            decode=given.workers,
            block_tokens=given.block_tokens,
            steps_at_once=given.steps_at_once,
        )
        deployment = simulated_deployment(config)
    gateway = GatewayConfig(model="simulated", max_requests=MAX_ANSWERS_PER_WORKER * given.workers)
    return DeploymentSimulation(structs.replace(deployment, gateway=gateway))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated.thousand_workers", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=1000, help="that decode; without prefill workers they do all")
    parser.add_argument("--prefill", type=int, default=0, help="prefill workers beside them")
    parser.add_argument("--rate", type=float, default=REQUESTS_PER_WORKER_S, help="requests per second and worker")
    parser.add_argument("--block-tokens", type=int, default=BLOCK_TOKENS)
    parser.add_argument("--steps-at-once", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    simulation, figures, began = simulated(given), LoadFigures(slo=CHAT_SLO), time.process_time()

    def shown(requests: Iterator[TimedRequest]) -> Iterator[TimedRequest]:
        for number, each in enumerate(requests):
            if number % REQUESTS_PER_LINE == 0 and number:
                each_ms = 1000 * (time.process_time() - began) / number
                print(
                    f"{number} of {given.requests} requests, {each_ms:.3f} ms each, "
                    f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB",
                    file=sys.stderr,
                    flush=True,
                )
            yield each

    workers = given.workers + given.prefill
    simulation.play(shown(chats(given.requests, given.rate * workers, given.seed)), figures.add)
    seconds = time.process_time() - began
    simulation.check_conservation()
    now = simulation.timeline.now
    busy = sum(each.step_seconds for each in simulation.fleet.workers.values()) / (now * workers)
    print(f"{figures.answered} answered, {figures.good / figures.requests:.2%} good, errors {figures.errors}")
    print(f"{figures.cached_tokens / figures.prompt_tokens:.1%} of the prompts' tokens were cached")
    for name, found in (("TTFT", figures.ttft_ms), ("TPOT", figures.tpot_ms)):
        p50, p90 = found.percentiles(0.5, 0.9)
        print(f"{name}: mean {found.mean:.3f}, p50 {p50:.3f}, p90 {p90:.3f} ms")
    print(
        f"{given.requests} requests to {workers} workers in {now:.0f} s, simulated in {seconds:.1f} processor seconds: "
        f"{1000 * seconds / given.requests:.3f} ms and {simulation.timeline.actions / given.requests:.1f} events a "
        f"request; workers compute {busy:.0%} of the time"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
