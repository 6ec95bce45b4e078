"""Simulates an hour of requests like Mooncake's: `python -m benchmarks.simulated.mooncake_hour [--trace FILE]`.

Without a file the hour is generated in its published form: 23,608 requests of tools and agents, whose prompts have
8,596 tokens on average, 59% of them in blocks that came before, and whose answers have 182 (Qin et al., "Mooncake",
FAST 2025, table 2). It says how many times faster than time the simulation was, in processor seconds of one core.
"""

import argparse
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.models.shapes import write_config
from launcher.simulating.simulate import SimulateConfig, simulated_deployment, simulated_report
from simulation.simulation import DeploymentSimulation
from workloads.table import table
from workloads.trace import MOONCAKE_BLOCK_TOKENS, MooncakeRow

REQUESTS_PER_HOUR, HOUR_S = 23_608, 3600.0
ARRIVALS_PERIOD_MS = 3000
"""Arrivals are published in multiples of it."""
AGENTS = 200
"""Agents with a prefix of their own, of which the n-th has 1/n as many requests as the first (Zipf)."""
PREFIX_BLOCKS = (4, 16)
OWN_MEDIAN_TOKENS, OWN_SIGMA, MAX_OWN_TOKENS = 1800, 1.05, 100_000
OUTPUT_MEDIAN_TOKENS, OUTPUT_SIGMA, MAX_OUTPUT_TOKENS = 100, 1.1, 2000


def generate(chance: random.Random, requests: int = REQUESTS_PER_HOUR) -> list[MooncakeRow]:
    """Draws the hour."""
    sizes = [chance.randint(*PREFIX_BLOCKS) for _ in range(AGENTS)]
    starts = [sum(sizes[:at]) for at in range(AGENTS)]
    weights = [1 / (1 + at) for at in range(AGENTS)]
    fresh = sum(sizes)
    rows = []
    for at in sorted(chance.uniform(0, 1000 * HOUR_S) for _ in range(requests)):
        (agent,) = chance.choices(range(AGENTS), weights)
        own = min(MAX_OWN_TOKENS, max(1, round(chance.lognormvariate(0, OWN_SIGMA) * OWN_MEDIAN_TOKENS)))
        output = min(MAX_OUTPUT_TOKENS, max(1, round(chance.lognormvariate(0, OUTPUT_SIGMA) * OUTPUT_MEDIAN_TOKENS)))
        blocks = -(-own // MOONCAKE_BLOCK_TOKENS)
        hashes = (*range(starts[agent], starts[agent] + sizes[agent]), *range(fresh, fresh + blocks))
        fresh += blocks
        timestamp = at // ARRIVALS_PERIOD_MS * ARRIVALS_PERIOD_MS
        rows.append(MooncakeRow(timestamp, sizes[agent] * MOONCAKE_BLOCK_TOKENS + own, output, hashes))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated.mooncake_hour", description=__doc__)
    parser.add_argument("--trace", help="Mooncake's own file; without it, requests are generated")
    parser.add_argument("--requests", type=int, default=REQUESTS_PER_HOUR, help="the first of the hour")
    parser.add_argument("--prefill", type=int, default=2)
    parser.add_argument("--decode", type=int, default=2)
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--speed", type=float, default=1.0, help="how many times as fast requests come")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        write_config(Path(folder), "llama-3.1-8b")
        trace = Path(given.trace or f"{folder}/hour.jsonl")
        if not given.trace:
            trace.write_bytes(b"\n".join(map(msgspec.json.encode, generate(random.Random(0)))))
        config = SimulateConfig(
            model=folder,
            gpu=given.gpu,
            prefill=given.prefill,
            decode=given.decode,
            trace=str(trace),
            trace_speed=given.speed,
            requests=given.requests,
            block_tokens=MOONCAKE_BLOCK_TOKENS,
            steps_at_once=256,
        )
        began = time.process_time()
        simulation = DeploymentSimulation(simulated_deployment(config))
        report = simulated_report(config, simulation)
        seconds = time.process_time() - began
    print("\n".join(table(report)))
    prompt = report.prompt_tokens_per_s * report.seconds / max(1, report.answered)
    output = report.output_tokens_per_s * report.seconds / max(1, report.answered)
    print(f"{'generated' if not given.trace else given.trace}: prompts of {prompt:.0f} tokens, answers of {output:.0f}")
    print(f"{report.cached_share:.0%} of prompts' tokens were cached")
    print(
        f"{report.requests} requests in {report.seconds:.0f} s, simulated in {seconds:.1f} processor seconds: "
        f"{report.seconds / seconds:.0f} times as fast, {1000 * seconds / report.requests:.2f} ms a request, "
        f"{simulation.timeline.actions / report.requests:.0f} events a request"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
