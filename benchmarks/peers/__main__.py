"""Measures our engine beside llama.cpp, vLLM's CPU build and transformers, in one run: `python -m benchmarks.peers`.

What is missing is installed first, each peer into an environment of its own. Then all of them load the same random
model and run the same prompts, greedily, on the same number of threads, in interleaved rounds; only one computes at
a time. `benchmarks.serve_peers` compares servers, over HTTP.
"""

import os
import platform
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
from msgspec import Meta, Struct

from benchmarks.limits.floor import floor, work_of
from benchmarks.limits.machine import Machine, measure
from benchmarks.limits.workloads import EXPERTS_TARGETS, TARGETS, WORKLOADS, Workload
from benchmarks.peers.model import Model, converted, random_model
from benchmarks.peers.process import OURS, PeerProcess, running
from benchmarks.peers.rounds import Results, run_rounds
from benchmarks.peers.setup import PEERS, Peer, directory_of, set_up
from benchmarks.processes.children import exit_status
from core.cli import parse_or_exit
from core.config import Positive
from core.errors import ConfigError
from engine.device import DTYPES
from engine.model.config import ExpertsMLP, ModelConfig
from engine.model.read_config import read_config
from engine.start.sizing import CPU_STEP
from launcher.stages import Stages


class PeersConfig(Struct, frozen=True, kw_only=True):
    """Measures tokens per second of Baton's engine and of its peers on a CPU, in interleaved rounds of one run."""

    directory: Annotated[
        str, Meta(description="where the peers are installed, and their logs; empty: this user's cache")
    ] = ""
    only: Annotated[
        str, Meta(description="some of llama.cpp, vllm, transformers with commas between them; empty: all")
    ] = ""
    model: Annotated[str, Meta(description="directory of a Llama or a Mixtral; empty: a random one of --shape")] = ""
    shape: Annotated[
        Literal["135m", "moe-1b"],
        Meta(description="of the random model: 135M parameters, or a mixture of experts that uses 0.2B of 1.0B"),
    ] = "135m"
    dtype: Annotated[Literal["bf16", "fp32"], Meta(description="number format of weights: bf16 or fp32")] = "bf16"
    threads: Annotated[int, Meta(ge=0, description="threads of each; 0: one for each core")] = 0
    rounds: Annotated[Positive, Meta(description="the median of so many is shown")] = 5


def chosen(only: str) -> list[Peer]:
    """Returns the peers that `--only` names. Raises `ConfigError`."""
    known = {peer.name: peer for peer in PEERS}
    names = [name.strip() for name in only.split(",")] if only else list(known)
    for name in names:
        if name not in known:
            raise ConfigError("--only", only, f"{name!r} is none of {', '.join(known)}")
    return [known[name] for name in names]


def compare(config: PeersConfig, stages: Stages) -> None:
    """Installs, measures and prints. Raises a `BatonError` for what is wrong."""
    peers = chosen(config.only)
    threads = config.threads or len(os.sched_getaffinity(0))
    directory = directory_of(config.directory)
    for peer in peers:
        set_up(directory, peer, stages)
    path = Path(config.model).expanduser().resolve() if config.model else random_model(directory, config.shape, stages)
    shape = read_config(path)
    workloads = [each for each in WORKLOADS if each.longest <= shape.max_model_len]
    if not workloads:
        raise ConfigError("--model", config.model, f"its context of {shape.max_model_len} tokens is too short")
    gguf = converted(directory, path, config.dtype, stages) if "llama.cpp" in (peer.name for peer in peers) else path
    model = Model(path, gguf, config.dtype, shape.vocab_size, longest=max(each.longest for each in workloads))
    machines: list[Machine] = []
    torch.set_num_threads(threads)

    def between(what: str, percent: int) -> None:
        stages.show("measuring", what, percent)
        machines.append(measure(torch.device("cpu"), DTYPES[config.dtype], work_of(shape, DTYPES[config.dtype]).bytes))

    with ExitStack() as stack:
        systems = []
        for peer in (OURS, *peers):  # one after the other: loading takes all cores
            system = stack.enter_context(running(peer, directory, model, threads))
            system.loaded(stages)
            systems.append(system)
        results = run_rounds(systems, workloads, config.rounds, shape.vocab_size, between)
    stages.show("measuring", "done")
    stages.settle()
    best = Machine.best(machines)
    print("\n".join(table(results, systems, workloads, shape, best, config)))
    for each in WORKLOADS:
        if each not in workloads:
            print(f"{each} is left out: the model's context is {shape.max_model_len} tokens")


def table(
    results: Results,
    systems: list[PeerProcess],
    workloads: list[Workload],
    shape: ModelConfig,
    machine: Machine,
    config: PeersConfig,
) -> list[str]:
    """Writes the lines that a person reads."""
    names = [system.name for system in systems]
    work = work_of(shape, DTYPES[config.dtype])
    batch_tokens = CPU_STEP
    targets = EXPERTS_TARGETS if isinstance(shape.layers[0].mlp, ExpertsMLP) else TARGETS
    versions = "; ".join(
        f"{system.name} ({', '.join(f'{package} {version}' for package, version in system.versions.items())})"
        for system in systems
    )
    lines = [
        f"{machine.name}, {machine.threads} threads; Python {platform.python_version()}; {versions}",
        f"memory {machine.read / 1e9:.1f} GB/s, matrix product {machine.multiply / 1e9:.0f} GFLOP/s; {config.dtype}; "
        f"tokens/s, median of {config.rounds} interleaved rounds",
        f"| workload | tokens | {' | '.join(names)} | limit | ours ÷ best peer | target |",
        f"| --- | --- | {' | '.join('---' for _ in names)} | --- | --- | --- |",
    ]
    for workload in workloads:
        rates = " | ".join(f"{results.rate(name, workload):.1f}" for name in names)
        limit = workload.rate(floor(workload, machine, work, batch_tokens).total)
        best = results.best(names[1:], workload)
        ratio = results.ratio(names[0], best, workload)
        target = f"{targets[workload]:.1f}" if workload in targets else "-"
        lines.append(f"| {workload} | {workload.counted} | {rates} | {limit:.0f} | {ratio:.2f} ({best}) | {target} |")
    same = ", ".join(f"{name} {sum(results.agreed[name])}" for name in names[1:])
    lines.append(f"first tokens that are equal to ours, of {len(results.agreed[names[0]])}: {same}")
    idle = ", ".join(f"{name} {cores:.2f}" for name, cores in results.idle_cores.items())
    lines.append(
        f"cores that each took, at most, while another one was measured: {idle or 'not known, runs were short'}"
    )
    return lines


def main() -> int:
    """Compares and returns the exit status: 2 for bad input, 1 where a peer fails."""
    config = parse_or_exit(PeersConfig, "benchmarks.peers")
    return exit_status(partial(compare, config))


if __name__ == "__main__":
    sys.exit(main())
