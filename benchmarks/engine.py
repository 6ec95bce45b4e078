"""Tokens per second of scheduler and executor in one process, without services, beside what the machine allows.

    python -m benchmarks.engine --model DIR [--dtype bf16] [--cpu-backend torch] [--threads 2] [--rounds 3]

A workload `n x i→o` is n requests of i prompt tokens and o greedy output tokens, all there at the start. *prompt* is
prompt tokens over the time until the last first token; *output* is all output tokens over all time, prompts included.
The *floor* of the time adds up, step by step, the larger of reading (weights, and KV as it grows) and multiplying.
"""

import argparse
import platform
import random
import sys
import time
from dataclasses import dataclass

import torch

from benchmarks.machine import Machine, measure
from core.config import EngineConfig
from core.errors import BatonError
from core.ids import SequenceKey
from core.messages import Limits, Sampling
from engine.architectures import ModelConfig, read_config
from engine.blocks import BlockManager
from engine.device import dtype_name
from engine.executor import Executor
from engine.hub import locate
from engine.scheduler import Scheduler
from engine.sequence import Sequence


@dataclass(frozen=True)
class Workload:
    """`requests` x `prompt`→`output` tokens."""

    requests: int
    prompt: int
    output: int

    def __str__(self) -> str:
        return f"{self.requests} x {self.prompt}→{self.output}"


WORKLOADS = (
    Workload(1, 16, 128),
    Workload(8, 16, 128),
    Workload(32, 16, 128),
    Workload(1, 1024, 1),
    Workload(16, 256, 64),
)


@dataclass(frozen=True)
class Timing:
    """Seconds from the start to the last first token, and to the end."""

    prompts: float
    total: float


def run(executor: Executor, config: EngineConfig, workload: Workload) -> Timing:
    """Serves one workload; asserts that every token came."""
    blocks = BlockManager(executor.spec, executor.block_count)
    scheduler = Scheduler(
        blocks,
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        max_model_len=executor.model_config.max_model_len,
    )
    draw = random.Random(0)
    vocabulary = executor.model_config.vocab_size
    sequences = []
    for number in range(workload.requests):
        prompt = [draw.randrange(vocabulary) for _ in range(workload.prompt)]
        sequence = Sequence(
            SequenceKey(str(number), 0),
            attempt=1,
            gateway="benchmark",
            tokens=prompt,
            prompt_tokens=len(prompt),
            deadline=float("inf"),
            sampling=Sampling(seed=number, temperature=0.0),
            limits=Limits(max_tokens=workload.output),
        )
        scheduler.add(sequence)
        sequences.append(sequence)
    begin = time.perf_counter()
    while scheduler.has_work():
        plan = scheduler.plan(time.perf_counter())
        assert plan is not None, "work, but no plan"
        executor.move(scheduler.take_moves())
        executor.launch(plan)
        scheduler.apply(executor.collect(), time.perf_counter())
    end = time.perf_counter()
    assert all(sequence.emitted == workload.output for sequence in sequences)
    return Timing(max(sequence.first_token_at for sequence in sequences) - begin, end - begin)


def floor(workload: Workload, machine: Machine, config: EngineConfig, executor: Executor) -> Timing:
    """The least time by the machine's own figures; attention's arithmetic is left out, so it is a true floor."""
    weights, head = weight_counts(executor.model_config)
    width, token_bytes = executor.dtype.itemsize, executor.spec.token_bytes()
    tokens = workload.requests * workload.prompt
    steps = -(-tokens // config.max_batch_tokens)
    read = steps * (weights + head) * width / machine.read
    prompts = max(read, 2 * (tokens * weights + workload.requests * head) / machine.multiply)
    rows = workload.requests
    multiply = 2 * rows * (weights + head) / machine.multiply
    total = prompts
    for index in range(1, workload.output):
        kept = rows * (workload.prompt + index) * token_bytes
        total += max(((weights + head) * width + kept) / machine.read, multiply)
    return Timing(prompts, total)


def weight_counts(model: ModelConfig) -> tuple[int, int]:
    """Values of the layers' matrices, and of the head: every token is multiplied by the first, sampled ones by both."""
    attention = 2 * (model.heads + model.kv_heads) * model.head_dim
    layer = model.hidden_size * (attention + 3 * model.intermediate_size)
    return model.layers * layer, model.vocab_size * model.hidden_size


def rates(workload: Workload, timing: Timing) -> tuple[float, float]:
    """Prompt and output tokens per second."""
    return workload.requests * workload.prompt / timing.prompts, workload.requests * workload.output / timing.total


def report(stage: str, percent: float) -> None:
    """Loading is not measured, and a table on standard output should stay one."""


def main() -> int:
    """Prints a table; 2 and one sentence where the model or a setting is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="model directory or hub id")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", choices=("auto", "fp32", "bf16", "fp16"))
    parser.add_argument("--cpu-backend", default="auto", choices=("auto", "native", "torch"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many runs is shown")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    try:
        own = read_config(locate(given.model, report)).max_model_len
        workloads = [each for each in WORKLOADS if each.prompt + each.output <= own]
        longest = max((each.prompt + each.output for each in workloads), default=own)
        config = EngineConfig(
            model=given.model,
            device=given.device,
            dtype=given.dtype,
            cpu_backend=given.cpu_backend,
            max_model_len=longest,
        )
        executor = Executor(config, report)
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    machine = measure(executor.device, executor.dtype)
    print(
        f"{machine.name}, {machine.threads} threads; Python {platform.python_version()}, torch {torch.__version__}; "
        f"{given.model}, {dtype_name(executor.dtype)} on {executor.device}, {executor.operators} operators, "
        f"median of {given.rounds}"
    )
    print(f"memory {machine.read / 1e9:.1f} GB/s, matrix product {machine.multiply / 1e9:.0f} GFLOP/s")
    print("| workload | prompt tok/s | limit | output tok/s | limit |\n| --- | --- | --- | --- | --- |")
    for workload in workloads:
        run(executor, config, Workload(workload.requests, workload.prompt, min(2, workload.output)))
        timings = sorted((run(executor, config, workload) for _ in range(given.rounds)), key=lambda each: each.total)
        prompt, output = rates(workload, timings[len(timings) // 2])
        most = floor(workload, machine, config, executor)
        prompt_limit, output_limit = rates(workload, most)
        print(f"| {workload} | {prompt:.0f} | {prompt_limit:.0f} | {output:.1f} | {output_limit:.1f} |", flush=True)
    for workload in sorted(set(WORKLOADS) - set(workloads), key=WORKLOADS.index):
        print(f"{workload} is left out: the model's context is {own} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
