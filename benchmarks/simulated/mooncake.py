"""Simulates requests like Mooncake's: `python -m benchmarks.simulated.mooncake [--hours 24 --wave 0.6] [--trace FILE]`.

Without a file the requests are generated in their published form: 23,608 an hour, of tools and agents, whose prompts
have 8,596 tokens on average, 59% of them in blocks that came before, and whose answers have 182 (Qin et al.,
"Mooncake", FAST 2025, table 2). A day begins at midnight: with `--wave`, its hours are quieter and busier than the
published one, which is their mean. The command says how many times faster than time the simulation was, in processor
seconds of one core, and its memory, which does not grow with the hours.
"""

import argparse
import math
import random
import resource
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.models.shapes import write_config
from benchmarks.processes.children import exit_status
from launcher.simulating.options import SimulateConfig
from launcher.simulating.simulate import simulated_deployment, simulated_report
from launcher.stages import StageDisplay
from simulation.simulation import DeploymentSimulation
from workloads.table import table
from workloads.trace import MOONCAKE_BLOCK_TOKENS, MooncakeRow

REQUESTS_PER_HOUR, HOUR_S, HOURS_PER_DAY = 23_608, 3600.0, 24
ARRIVALS_PERIOD_MS = 3000
"""Arrivals are published in multiples of it."""
AGENTS_WITH_PREFIX = 200
"""Agents with a prefix of their own, of which the n-th has 1/n as many requests as the first (Zipf)."""
PREFIX_BLOCKS = (4, 16)
OWN_MEDIAN_TOKENS, OWN_SIGMA, MAX_OWN_TOKENS = 1800, 1.05, 100_000
OUTPUT_MEDIAN_TOKENS, OUTPUT_SIGMA, MAX_OUTPUT_TOKENS = 100, 1.1, 2000


def generate(chance: random.Random, hours: int = 1, wave: float = 0.0) -> Iterator[MooncakeRow]:
    """Yields the requests of hours from midnight on, in order of their times.

    `wave`: the share of the mean by which noon is busier, and midnight quieter.
    """
    sizes = [chance.randint(*PREFIX_BLOCKS) for _ in range(AGENTS_WITH_PREFIX)]
    starts = [0, *accumulate(sizes)]
    weights = list(accumulate(1 / (1 + at) for at in range(AGENTS_WITH_PREFIX)))
    fresh = sum(sizes)
    for hour in range(hours):
        level = 1 - wave * math.cos(2 * math.pi * (hour + 0.5) / HOURS_PER_DAY)
        arrivals = [chance.uniform(0, 1000 * HOUR_S) for _ in range(round(level * REQUESTS_PER_HOUR))]
        for at in sorted(arrivals):
            (agent,) = chance.choices(range(AGENTS_WITH_PREFIX), cum_weights=weights)
            own = min(MAX_OWN_TOKENS, max(1, round(chance.lognormvariate(0, OWN_SIGMA) * OWN_MEDIAN_TOKENS)))
            output = min(
                MAX_OUTPUT_TOKENS, max(1, round(chance.lognormvariate(0, OUTPUT_SIGMA) * OUTPUT_MEDIAN_TOKENS))
            )
            blocks = -(-own // MOONCAKE_BLOCK_TOKENS)
            hashes = (*range(starts[agent], starts[agent + 1]), *range(fresh, fresh + blocks))
            fresh += blocks
            timestamp = 1000 * HOUR_S * hour + at // ARRIVALS_PERIOD_MS * ARRIVALS_PERIOD_MS
            yield MooncakeRow(timestamp, sizes[agent] * MOONCAKE_BLOCK_TOKENS + own, output, hashes)


def _length(chance: random.Random, median: int, sigma: float, most: int) -> int:
    return min(most, max(1, round(chance.lognormvariate(0, sigma) * median)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated.mooncake", description=__doc__)
    parser.add_argument("--trace", default="", help="Mooncake's own file; without it, requests are generated")
    parser.add_argument("--hours", type=int, default=1, help="that are generated, from midnight on")
    parser.add_argument("--wave", type=float, default=0.0, help="share by which noon is busier, and midnight quieter")
    parser.add_argument("--requests", type=int, default=0, help="the first; 0: all")
    parser.add_argument("--prefill", type=int, default=2)
    parser.add_argument("--decode", type=int, default=2)
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--speed", type=float, default=1.0, help="how many times as fast requests come")
    given = parser.parse_args()
    if not 0 <= given.wave < 1:
        parser.error(f"--wave {given.wave:g}: expected a share from 0 to below 1")

    def work(stages: StageDisplay) -> None:
        with TemporaryDirectory() as folder:
            write_config(Path(folder), "llama-3.1-8b")
            trace = Path(given.trace or f"{folder}/generated.jsonl")
            if not given.trace:
                with trace.open("wb") as file:
                    for row in generate(random.Random(0), given.hours, given.wave):
                        file.write(msgspec.json.encode(row) + b"\n")
            _simulate(
                given,
                SimulateConfig(
                    model=folder,
                    gpu=given.gpu,
                    prefill=given.prefill,
                    decode=given.decode,
                    trace=str(trace),
                    trace_speed=given.speed,
                    requests=given.requests,
                    block_tokens=MOONCAKE_BLOCK_TOKENS,
                    steps_at_once=256,
                ),
                stages,
            )

    return exit_status(work)


def _simulate(given: argparse.Namespace, config: SimulateConfig, stages: StageDisplay) -> None:
    began = time.process_time()
    simulation = DeploymentSimulation(simulated_deployment(config))
    report = simulated_report(config, simulation, stages)
    seconds = time.process_time() - began
    stages.settle()
    print("\n".join(table(report)))
    prompt = report.prompt_tokens_per_s * report.seconds / max(1, report.answered)
    output = report.output_tokens_per_s * report.seconds / max(1, report.answered)
    print(f"{given.trace or 'generated'}: prompts of {prompt:.0f} tokens, answers of {output:.0f}")
    print(f"{report.cached_share:.0%} of prompts' tokens were cached")
    print(
        f"{report.requests} requests in {report.seconds:.0f} s, simulated in {seconds:.1f} processor seconds: "
        f"{report.seconds / seconds:.0f} times as fast, {1000 * seconds / report.requests:.2f} ms a request, "
        f"{simulation.timeline.actions / report.requests:.0f} events a request, "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB of memory"
    )


if __name__ == "__main__":
    raise SystemExit(main())
