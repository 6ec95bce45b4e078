"""Measures the cost of penalties, biases, forbidden tokens and scores in a decode step, beside a plain step.

    python -m benchmarks.steps.sampling_cost [--batch 32] [--rounds 60] [--threads 2] [--dtype bf16] [--model DIR]

The model is a random one of 135M parameters unless one is given. All kinds take turns, step by step, in one process;
ratios are of neighbouring steps, and their median. With one thread on a CPU times are on its own clock. Texts have 512
tokens at first, and grow with each step.
"""

import argparse
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from msgspec import structs

from benchmarks.models.random_model import make
from benchmarks.processes import as_a_worker
from benchmarks.processes.decoding import MakeWork, Texts
from benchmarks.processes.in_process import quiet
from benchmarks.report import head, in_turns, machine, ratio, row
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
    rounds = in_turns({kind: texts.step for kind, texts in kinds.items()}, given.rounds, WARM_UP_STEPS)
    print(f"{machine(given.threads)}; {executor.engine.backend.name} operators")
    print(f"batch {given.batch}, texts of {TEXT_TOKENS} tokens, {given.dtype}, median of {given.rounds} rounds\n")
    print(head("texts", "step ms", "of a step of which nobody asks"))
    for kind in kinds:
        milliseconds = 1e3 * median(each[kind] for each in rounds)
        print(row(kind, f"{milliseconds:.2f}", f"{ratio(rounds, kind, 'nobody asks'):.3f}"))


def main() -> int:
    parser = as_a_worker.options("sampling_cost", __doc__, rounds=60, backend="auto")
    parser.add_argument("--model", default="", help="directory of a model; empty: a random one of 135M parameters")
    parser.add_argument("--batch", type=int, default=32, help="sequences of a step")
    given = parser.parse_args()

    def measured() -> None:
        with TemporaryDirectory() as directory:
            if not given.model:
                make(Path(directory), "135m")
            measure(given, given.model or directory)

    return as_a_worker.run(measured, given.threads)


if __name__ == "__main__":
    sys.exit(main())
