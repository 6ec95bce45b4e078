"""Measures transformers' own forward pass over our KV pool beside its `generate`: `python -m benchmarks.steps.wrapped`.

The same model serves the same prompts in turns in one process: by transformers' `generate`, by its own forward pass
over our pool (`--model-impl transformers`), and by our transformer (`native`), for comparison. A ratio is of
neighbouring times, and its median is shown. All of them should begin their answers with the same tokens.
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
from benchmarks.models.random_model import make
from benchmarks.peers.runners.protocol import Generate
from benchmarks.peers.runners.transformers import generating
from benchmarks.processes.children import exit_status
from benchmarks.processes.in_process import quiet, serve
from benchmarks.report import head, in_turns, machine, ratio, row
from contracts.kinds import ModelImpl, Positive
from engine.device import DTYPES_BY_NAME
from engine.executor import Executor
from engine.start.load import load_engine
from infra.cli import parse_or_exit
from infra.config.engine import EngineConfig
from launcher.stages import StageDisplay

WAYS: tuple[ModelImpl, ...] = ("transformers", "native")


class WrappedBenchmark(Struct, frozen=True, kw_only=True):
    """Measures tokens per second by transformers' generate, by its forward pass over our pool, and by ours."""

    model: Annotated[str, Meta(description="directory of a model; empty: a random Llama of 135M parameters")] = ""
    dtype: Annotated[Literal["bf16", "fp32"], Meta(description="number format of weights")] = "bf16"
    threads: Annotated[int, Meta(ge=0, description="threads; 0: one for each core")] = 0
    rounds: Annotated[Positive, Meta(description="the median of these is shown")] = 3
    batches: Annotated[str, Meta(description="requests at once, with commas between them")] = "1,8,32"
    prompt: Annotated[Positive, Meta(description="tokens of each prompt")] = 32
    output: Annotated[Positive, Meta(description="tokens of each answer")] = 64


def by_engine(directory: Path, given: WrappedBenchmark, way: ModelImpl) -> Generate:
    longest = given.prompt + given.output
    config = EngineConfig(model=str(directory), device="cpu", dtype=given.dtype, max_model_len=longest, model_impl=way)
    executor = Executor(load_engine(config, quiet))
    return lambda prompts, output: serve(executor, config, prompts, output)[1]


def compare(given: WrappedBenchmark, stages: StageDisplay) -> None:
    """Prints a table. Raises `BatonError` where the model cannot be loaded."""
    if given.threads:
        torch.set_num_threads(given.threads)
    with TemporaryDirectory() as made:
        directory = Path(given.model or made)
        if not given.model:
            make(directory, "135m")
        stages.show("model", "loading")
        vocabulary = int(transformers.AutoConfig.from_pretrained(directory).vocab_size)
        systems = {"generate": generating(str(directory), DTYPES_BY_NAME[given.dtype])}
        systems |= {way: by_engine(directory, given, way) for way in WAYS}
    rows = [
        measured(Workload(int(batch), given.prompt, given.output), systems, vocabulary, given.rounds, stages)
        for batch in given.batches.split(",")
    ]
    stages.settle()
    print(
        f"{machine(torch.get_num_threads())}, torch {torch.__version__}, transformers {transformers.__version__}; "
        f"{given.dtype}; output tokens/s, median of {given.rounds} rounds\n"
    )
    print(head("workload", *systems, *(f"{way} ÷ generate" for way in WAYS), "first tokens equal"), *rows, sep="\n")


def measured(
    workload: Workload, systems: dict[str, Generate], vocabulary: int, rounds: int, stages: StageDisplay
) -> str:
    prompts: list[list[int]] = []

    def show(number: int, of: int) -> None:
        stages.show("measuring", str(workload), 100 * number // of)
        prompts[:] = workload.prompts(vocabulary, number)

    def run(generate: Generate) -> tuple[float, list[int]]:
        begin = time.perf_counter()
        tokens = generate(prompts, workload.output)
        return time.perf_counter() - begin, [each[0] for each in tokens]

    found = in_turns({name: partial(run, generate) for name, generate in systems.items()}, rounds, show=show)
    seconds = [{name: took for name, (took, _) in each.items()} for each in found]
    rates = [f"{median(workload.rate(each[name]) for each in seconds):.1f}" for name in systems]
    firsts = [first for each in found for first in zip(*(tokens for _, tokens in each.values()), strict=True)]
    equal = f"{sum(len(set(first)) == 1 for first in firsts)} of {len(firsts)}"
    return row(workload, *rates, *(f"{ratio(seconds, 'generate', way):.2f}" for way in WAYS), equal)


def main() -> int:
    return exit_status(partial(compare, parse_or_exit(WrappedBenchmark, "benchmarks.steps.wrapped")))


if __name__ == "__main__":
    sys.exit(main())
