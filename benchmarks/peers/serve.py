"""Measures goodput of Baton and of vLLM's CPU server under the same HTTP load: `python -m benchmarks.peers.serve`.

Completions of random token ids, all of one length, arrive as a Poisson process. For each server in turn the rate is
doubled until fewer than 90% of the requests meet TTFT and TPOT, then bisected. Only one server runs at a time, on all
cores, which it shares with the load generator. vLLM is installed as by `benchmarks.peers`.

Baton runs twice: split (`baton`: a prefill and a decode worker) and unsplit (`baton-unsplit`: a decode worker that
serves whole requests). When to split is seen from short prompts beside long ones, without vLLM:

    python -m benchmarks.peers.serve --only baton,baton-unsplit --prompt-tokens 64,1024
"""

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from benchmarks.peers.model import random_model
from benchmarks.peers.servers import VLLM, Server, baton, serving, vllm
from benchmarks.peers.setup import directory_of, set_up
from benchmarks.processes.children import exit_status
from benchmarks.report import head, row
from contracts.errors import ConfigError
from contracts.kinds import Positive, Seconds, TPOTLimit, TTFTLimit
from engine.model.checkpoint.read_config import read_config
from infra.cli import parse_or_exit
from launcher.bench.machine import machine
from launcher.bench.options import BenchConfig
from launcher.bench.rates import trial_at
from launcher.bench.run import BenchRun
from launcher.instance.endpoint import ClientEndpoint
from launcher.stages import StageDisplay
from workloads.goodput import MIN_GOOD_SHARE, Trial, best, search

SERVERS = ("baton", "baton-unsplit", "vllm")
TARGET_RATIO = 1.5
WARM_UP_REQUESTS = 12


class ServeConfig(Struct, frozen=True, kw_only=True):
    """Measures goodput of Baton and of vLLM's CPU server under the same load."""

    directory: Annotated[
        str, Meta(description="where vLLM is installed, and the servers' logs; empty: this user's cache")
    ] = ""
    only: Annotated[
        str, Meta(description="servers, divided by commas: baton, baton-unsplit, vllm; empty: all of them")
    ] = ""
    model: Annotated[str, Meta(description="directory of a model; empty: a random one of 135M parameters")] = ""
    dtype: Annotated[Literal["bf16", "fp32"], Meta(description="number format of weights: bf16 or fp32")] = "bf16"
    prompt_tokens: Annotated[
        str, Meta(pattern=r"^[1-9]\d*(,[1-9]\d*)*$", description="tokens of each prompt; more lengths: 64,1024")
    ] = "256"
    output_tokens: Annotated[Positive, Meta(description="tokens of each answer")] = 64
    first_rate: Annotated[float, Meta(gt=0, description="requests per second to begin with")] = 0.5
    seconds: Annotated[Seconds, Meta(description="seconds for which requests are sent at each rate")] = 30.0
    bisections: Annotated[int, Meta(ge=0, description="rates between the last good and the first bad one")] = 4
    slo_ttft_ms: TTFTLimit = 2000.0
    slo_tpot_ms: TPOTLimit = 100.0
    vllm_threads: Annotated[int, Meta(ge=0, description="threads that vLLM computes with; 0: one for each core")] = 0
    seed: Annotated[int, Meta(ge=0, description="seed of prompts and arrivals")] = 0

    def lengths(self) -> list[int]:
        return [int(length) for length in self.prompt_tokens.split(",")]

    def servers(self) -> list[str]:
        """Returns the names of the servers to measure, in order. Raises `ConfigError` for an unknown name."""
        names = self.only.split(",") if self.only else list(SERVERS)
        for name in names:
            if name not in SERVERS:
                raise ConfigError("--only", name, f"is none of {', '.join(SERVERS)}")
        return names


def trials(url: str, config: ServeConfig, prompt_tokens: int, vocabulary: int, stages: StageDisplay) -> Iterable[Trial]:
    bench = BenchConfig(
        url=url,
        prompt_tokens=str(prompt_tokens),
        output_tokens=str(config.output_tokens),
        vocabulary=vocabulary,
        seconds=config.seconds,
        warm_up=WARM_UP_REQUESTS,
        slo_ttft_ms=config.slo_ttft_ms,
        slo_tpot_ms=config.slo_tpot_ms,
        seed=config.seed,  # other prompts at each rate, the same for every server
    )
    endpoint = ClientEndpoint(url, "", "")
    run = BenchRun(endpoint, endpoint.client().model(), stages)
    measured = partial(trial_at, bench, partial(run.load, give_up=True))
    return search(measured, config.first_rate, config.bisections)


def compare(config: ServeConfig, stages: StageDisplay) -> None:
    """Starts, loads and stops each server, and prints. Raises `BatonError`."""
    names, lengths = config.servers(), config.lengths()
    directory = directory_of(config.directory)
    if "vllm" in names:
        set_up(directory, VLLM, stages)
    model = Path(config.model).expanduser().resolve() if config.model else random_model(directory, "135m", stages)
    vocabulary = read_config(model).vocab_size
    longest = max(lengths) + config.output_tokens
    threads = config.vllm_threads or len(os.sched_getaffinity(0))
    makers: dict[str, Callable[[], Server]] = {
        "baton": lambda: baton(directory, model, config.dtype, longest, prefill=1, tpot_ms=config.slo_tpot_ms),
        "baton-unsplit": lambda: baton(directory, model, config.dtype, longest, prefill=0, tpot_ms=config.slo_tpot_ms),
        "vllm": lambda: vllm(directory, model, config.dtype, longest, threads),
    }
    print(machine())
    print(
        f"load    {config.prompt_tokens}→{config.output_tokens} tokens, {config.dtype}, Poisson, {config.seconds:g} s "
        f"per rate; good: TTFT ≤ {config.slo_ttft_ms:g} ms and TPOT ≤ {config.slo_tpot_ms:g} ms"
    )
    columns = "server", "prompt", "requests/s", "good", "TTFT p50, p99 ms", "TPOT p50, p99 ms", "unanswered"
    print(head(*columns), flush=True)
    found: dict[str, dict[int, Trial | None]] = {}
    for name in names:
        with serving(makers[name](), stages) as url:
            found[name] = {}
            for length in lengths:
                made = []
                for trial in trials(url, config, length, vocabulary, stages):
                    made.append(trial)
                    stages.settle()  # the table goes on below
                    print(line(name, length, trial), flush=True)
                found[name][length] = best(made)
    for length in lengths:
        print("\n".join(summary(length, {name: each[length] for name, each in found.items()})))


def line(name: str, length: int, trial: Trial) -> str:
    report = trial.report
    ttft, tpot = (f"{each.p50:.0f}, {each.p99:.0f}" for each in (report.ttft_ms, report.tpot_ms))
    share = f"{100 * report.good_share:.0f}%"
    return row(name, length, f"{trial.rate:.3f}", share, ttft, tpot, sum(report.errors.values()))


def summary(length: int, found: dict[str, Trial | None]) -> Iterable[str]:
    for name, trial in found.items():
        if trial is None:
            yield f"{length} tokens, {name}: at no rate were {MIN_GOOD_SHARE:.0%} of the requests good"
        else:
            yield f"{length} tokens, {name}: goodput {trial.goodput:.2f} requests/s, at {trial.rate:.3f}/s"
    ours, unsplit, theirs = (found.get(name) for name in SERVERS)
    if ours is not None and unsplit is not None:
        yield f"{length} tokens, split ÷ unsplit: {ours.goodput / unsplit.goodput:.2f}"
    if ours is not None and theirs is not None:
        yield f"{length} tokens, ours ÷ vllm's: {ours.goodput / theirs.goodput:.2f} (target {TARGET_RATIO})"


def main() -> int:
    config = parse_or_exit(ServeConfig, "benchmarks.peers.serve")
    return exit_status(partial(compare, config))


if __name__ == "__main__":
    sys.exit(main())
