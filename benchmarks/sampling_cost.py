"""Measures what penalties, biases, forbidden tokens and scores cost a decode step, beside one for which nobody asks.

    python -m benchmarks.sampling_cost [--batch 32] [--rounds 60] [--threads 2] [--dtype bf16] [--model DIR]

The model is a random one of 135M parameters unless one is given. All kinds take turns, step by step, in one process, so
that a busy machine slows all of them down; ratios are of neighbouring steps, and their median. With one thread on a CPU
times are on its own clock, and a busy machine shows little. Texts have 512 tokens at first, and grow with each step.
"""

import argparse
import platform
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from msgspec import structs

from benchmarks.processes.as_a_worker import run
from benchmarks.processes.decoding import MakeWork, Texts
from benchmarks.processes.in_process import quiet
from benchmarks.random_model import make
from contracts.kinds import BlockSize
from contracts.kv.spec import blocks_for
from contracts.messages.sampling import Sampling
from engine.executor import Executor
from engine.plan import Work
from engine.start.load import load_engine
from infra.config.engine import EngineConfig

TEXT_TOKENS, PROMPT_TOKENS = 512, 256
"""Tokens of a text when it begins, and how many of them are the prompt."""
BLOCK_TOKENS: BlockSize = 16
WARM_UP_STEPS = 3
PENALTIES = Sampling(
    0,
    temperature=0.0,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    logit_bias=tuple((token, 0.5) for token in range(0, 3000, 100)),
)
SAMPLING_KINDS = {
    "nobody asks": Sampling(0, temperature=0.0),
    "penalties and 30 biases": PENALTIES,
    "penalties of every second text": PENALTIES,
    "100 bad words": Sampling(0, temperature=0.0, bad_words=tuple((token, token + 1) for token in range(100))),
    "log-probabilities, 5 alternatives": Sampling(0, temperature=0.0, logprobs=5),
    "log-probabilities, 20 alternatives": Sampling(0, temperature=0.0, logprobs=20),
    "5 alternatives of every second text": Sampling(0, temperature=0.0, logprobs=5),
    "penalties, 30 biases, 5 alternatives": structs.replace(PENALTIES, logprobs=5),
    "half of the vocabulary allowed": Sampling(0, temperature=0.0, allowed_token_ids=tuple(range(0, 40_000, 2))),
}


def works_of(kind: str, first: int) -> MakeWork:
    def work(index: int, text: list[int]) -> Work:
        each = blocks_for(TEXT_TOKENS, BLOCK_TOKENS)
        blocks = list(range(1 + index * each, 1 + (index + 1) * each))
        asks = "every second" not in kind or index % 2 == 0
        sampling = SAMPLING_KINDS[kind] if asks else SAMPLING_KINDS["nobody asks"]
        known = text if sampling.looks_back else None
        return Work(
            first + index,
            TEXT_TOKENS - 1,  # the same place each time, so that all steps compute as much
            text[-1:],
            (blocks,),
            sampling,
            (0,),
            len(text) - PROMPT_TOKENS,
            known,
            PROMPT_TOKENS,
        )

    return work


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling_cost", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="", help="directory of a model; empty: a random one of 135M parameters")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--dtype", default="bf16", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--cpu-backend", default="auto", choices=("auto", "native", "torch"))
    parser.add_argument("--batch", type=int, default=32, help="sequences of a step")
    parser.add_argument("--rounds", type=int, default=60, help="steps of each kind")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def measure(given: argparse.Namespace, model: str) -> None:
    """Prints a table. Raises `BatonError` where the model cannot be loaded."""
    config = EngineConfig(
        model=model,
        device=given.device,
        dtype=given.dtype,
        cpu_backend=given.cpu_backend,
        max_model_len=TEXT_TOKENS + 1,
        max_sequences=given.batch,
        block_size=BLOCK_TOKENS,
    )
    executor = Executor(load_engine(config, quiet))
    assert executor.engine.pool.counts[0] > given.batch * blocks_for(TEXT_TOKENS, BLOCK_TOKENS), (
        "a pool that is too small"
    )
    kinds = {}
    for number, kind in enumerate(SAMPLING_KINDS):
        first = 1 + number * given.batch
        kinds[kind] = Texts(executor, given.batch, TEXT_TOKENS, works_of(kind, first), seed=first)
    rounds = [{kind: texts.step() for kind, texts in kinds.items()} for _ in range(WARM_UP_STEPS + given.rounds)][
        WARM_UP_STEPS:
    ]
    backend = executor.engine.backend
    print(f"{platform.processor() or platform.machine()}, {given.threads} threads; {backend.name} operators")
    print(f"batch {given.batch}, texts of {TEXT_TOKENS} tokens, {given.dtype}, median of {given.rounds} rounds\n")
    print("| texts | step ms | of a step of which nobody asks |\n| --- | --- | --- |")
    for kind in kinds:
        ratio = median(each[kind] / each["nobody asks"] for each in rounds)
        print(f"| {kind} | {1e3 * median(each[kind] for each in rounds):.2f} | {ratio:.3f} |")


def main() -> int:
    given = options()

    def measured() -> None:
        with TemporaryDirectory() as directory:
            if not given.model:
                make(Path(directory), "135m")
            measure(given, given.model or directory)

    return run(measured, given.threads)


if __name__ == "__main__":
    sys.exit(main())
