"""Measures a model by transformers' own code over our KV pool, beside `generate`: `python -m benchmarks.wrapped`.

The same random Llama runs three times in one process, in interleaved rounds: by transformers' `generate`, by its own
forward pass over our pool (`--model-impl transformers`), and by our transformer (`native`), for comparison.
"""

import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import torch
import transformers
from msgspec import Meta, Struct

from benchmarks.limits.workloads import Workload
from benchmarks.peers.runners.protocol import Generate
from benchmarks.peers.runners.transformers import generating
from benchmarks.processes import in_process
from benchmarks.processes.children import exit_status
from benchmarks.random_model import make
from benchmarks.report import head, machine, ratio, row
from contracts.kinds import ModelImpl, Positive
from engine.device import DTYPES_BY_NAME
from engine.executor import Executor
from engine.start.load import load_engine
from infra.cli import parse_or_exit
from infra.config.engine import EngineConfig
from launcher.stages import StageDisplay

WAYS: tuple[ModelImpl, ...] = ("transformers", "native")


class WrappedBenchmark(Struct, frozen=True, kw_only=True):
    """Measures a model's tokens per second by transformers' generate, by its forward pass over our pool, and ours."""

    model: Annotated[str, Meta(description="directory of a model; empty: a random Llama of 135M parameters")] = ""
    dtype: Annotated[Literal["bf16", "fp32"], Meta(description="number format of weights: bf16 or fp32")] = "bf16"
    threads: Annotated[int, Meta(ge=0, description="threads; 0: one for each core")] = 0
    rounds: Annotated[Positive, Meta(description="the median of so many is shown")] = 3
    batches: Annotated[str, Meta(description="requests at once, with commas between them")] = "1,8,32"
    prompt: Annotated[Positive, Meta(description="tokens of each prompt")] = 32
    output: Annotated[Positive, Meta(description="tokens of each answer")] = 64
    native: Annotated[bool, Meta(description="our own transformer as well, for a family that we have")] = True


def generate_by_engine(directory: Path, given: WrappedBenchmark, way: ModelImpl) -> Generate:
    longest = given.prompt + given.output
    config = EngineConfig(model=str(directory), device="cpu", dtype=given.dtype, max_model_len=longest, model_impl=way)
    executor = Executor(load_engine(config, in_process.quiet))
    return lambda prompts, output: in_process.serve(executor, config, prompts, output)[1]


def compare(given: WrappedBenchmark, stages: StageDisplay) -> None:
    if given.threads:
        torch.set_num_threads(given.threads)
    with TemporaryDirectory() as made:
        directory = Path(given.model).expanduser() if given.model else Path(made)
        if not given.model:
            stages.show("model", "making")
            make(directory, "135m")
        stages.show("model", "loading")
        vocabulary = int(transformers.AutoConfig.from_pretrained(directory).vocab_size)
        systems = {"generate": generating(str(directory), DTYPES_BY_NAME[given.dtype])}
        for way in WAYS if given.native else WAYS[:1]:
            systems[way] = generate_by_engine(directory, given, way)
    workloads = [Workload(int(batch), given.prompt, given.output) for batch in given.batches.split(",")]
    seconds: dict[tuple[str, Workload], list[float]] = {}
    agreed = {name: [0, 0] for name in systems}
    for index in range(-1, given.rounds):  # the first round warms up
        for workload in workloads:
            stages.show("measuring", f"round {index + 1} of {given.rounds}: {workload}")
            prompts = workload.prompts(vocabulary, seed=index)
            first: list[int] = []
            for name, generate in systems.items():
                begin = time.perf_counter()
                tokens = generate(prompts, workload.output if index >= 0 else 4)
                if index >= 0:
                    seconds.setdefault((name, workload), []).append(time.perf_counter() - begin)
                first = first or [each[0] for each in tokens]
                agreed[name][0] += sum(each[0] == one for each, one in zip(tokens, first, strict=True))
                agreed[name][1] += len(first)
    stages.settle()
    print("\n".join(table(given, systems, workloads, seconds)))
    print("first tokens equal to generate's: " + ", ".join(f"{name} {a} of {b}" for name, (a, b) in agreed.items()))


def table(
    given: WrappedBenchmark,
    systems: dict[str, Generate],
    workloads: list[Workload],
    seconds: dict[tuple[str, Workload], list[float]],
) -> list[str]:
    lines = [
        f"{machine(torch.get_num_threads())}, torch {torch.__version__}, transformers {transformers.__version__}; "
        f"{given.dtype}; output tokens/s, median of {given.rounds} rounds",
        head("workload", *systems, *(f"{name} ÷ generate" for name in systems if name in WAYS)),
    ]
    for workload in workloads:
        found = {name: seconds[name, workload] for name in systems}
        rounds = [dict(zip(found, times, strict=True)) for times in zip(*found.values(), strict=True)]
        rates = [f"{median(workload.rate(each) for each in found[name]):.1f}" for name in systems]
        ratios = [f"{ratio(rounds, 'generate', name):.2f}" for name in systems if name in WAYS]
        lines.append(row(workload, *rates, *ratios))
    return lines


def main() -> int:
    return exit_status(partial(compare, parse_or_exit(WrappedBenchmark, "benchmarks.wrapped")))


if __name__ == "__main__":
    sys.exit(main())
