"""The gain of a draft model: `python -m benchmarks.speculation.draft [--draft DIR] [--repeats N] [--threads N]`.

Targets are the demo model, and larger models of the same function (`benchmarks/models/widened.py`), so that a
trained draft meets trained targets of several sizes. Questions are the held-out ones of the demo model's evaluation.
Each is answered by scheduler and executor as a worker does it, without speculation and with up to k guesses a step, in
turns. Compared are the processor seconds of the engine's thread, of the whole answer but for its prompt's step,
of which the draft's computing of the prompt is a part. A last table has how often a first guess is right, beside what
shared noise and rejection sampling promise on the same texts (`agreement.py`).
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from transformers import AutoTokenizer

from benchmarks.models.widened import Larger, widen
from benchmarks.processes.in_process import Loop, add, answers, quiet
from benchmarks.report import head
from benchmarks.speculation.agreement import by_rejection, by_shared_noise, independent
from contracts.messages.sampling import Limits, Sampling
from demo_model.evaluate import FIGURES, prompt
from engine.backends.reference.processed import processed
from engine.executor import Executor
from engine.plan import StepPlan, StepResult
from engine.schedule.speculation import Speculation
from engine.speculation.proposers.proposer import EngineProposer
from engine.start.load import LoadedEngine, load_engine
from infra.config.engine import EngineConfig

ROOT = Path(__file__).resolve().parents[2]
DEMO, DRAFT = ROOT / "demo_model" / "weights", ROOT / "demo_model" / "draft_weights"
END_OF_TURN_ID = 2
MAX_ANSWER_TOKENS = 200
TARGETS = {"1.9M": None, "6.7M": Larger(2, 2, 2, 4), "18M": Larger(2, 2, 2, 12), "118M": Larger(4, 4, 4, 20)}
DRAFT_COUNTS = (2, 4, 8)
TEMPERATURES = (0.0, 0.4, 1.0)


class Run(NamedTuple):
    """Results of one way of serving."""

    tokens: list[list[int]]
    seconds: float  # of the thread, without the prompts' steps
    steps: int
    guessed: int  # works with guesses
    first: int  # of these, whose first guess came true
    proposed: int
    came: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draft", type=Path, default=DRAFT, help="draft model (default: %(default)s)")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS), help="sizes")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4], help="sequences at once")
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    prompts = questions(options.questions)
    print(head("target", "batch", "temperature", "k", "tokens a step", "guesses that came", "against none"))
    with tempfile.TemporaryDirectory() as place:
        for name in options.targets:
            engine = loaded(name, options.draft, Path(place))
            for batch in options.batches:
                for temperature in TEMPERATURES[: 2 if batch == 1 else 1]:
                    for line in compared(engine, prompts, batch, temperature, options.repeats):
                        print(f"| {name} | {batch} | {temperature} | {line} |", flush=True)
            if name == options.targets[0]:
                tables = list(agreements(engine, options.draft, prompts))
    columns = "temperature", "first guesses that came", "shared noise", "rejection sampling", "independent draws"
    print("\n" + head(*columns))
    print("\n".join(tables))


def questions(count: int) -> list[list[int]]:
    tokenizer, rng = AutoTokenizer.from_pretrained(DEMO), Random(1)
    figures = [figure for figure in FIGURES.values() if not figure.told]
    texts = [prompt(tokenizer, figures[number % len(figures)].make(rng)) for number in range(count)]
    return [tokenizer(text, add_special_tokens=False).input_ids for text in texts]


def loaded(name: str, draft: Path, place: Path) -> LoadedEngine:
    directory, larger = DEMO, TARGETS[name]
    if larger is not None:
        directory = place / name
        widen(DEMO, directory, larger)
    config = EngineConfig(
        model=str(directory),
        device="cpu",
        dtype="bf16",
        kv_memory=256 << 20,
        max_sequences=64,
        speculation="draft",
        draft_model=str(draft),
    )
    return load_engine(config, quiet)


def compared(
    engine: LoadedEngine,
    prompts: list[list[int]],
    batch: int,
    temperature: float,
    repeats: int,
    counts: Sequence[int] = DRAFT_COUNTS,
) -> Iterator[str]:
    runs: dict[int, list[Run]] = {guesses: [] for guesses in (0, *counts)}
    for _ in range(repeats):
        for guesses, found in runs.items():
            parts = [
                served(engine, prompts[first : first + batch], guesses, temperature)
                for first in range(0, len(prompts), batch)
            ]
            found.append(joined(parts))
    plain = runs[0][0]
    for guesses in counts:
        one = runs[guesses][0]
        same = sum(left == right for left, right in zip(one.tokens, plain.tokens, strict=True))
        ratio = statistics.median(a.seconds / b.seconds for a, b in zip(runs[0], runs[guesses], strict=True))
        came = f"{one.came / one.proposed:.0%}"
        rest = "" if same == len(plain.tokens) else f" ({len(plain.tokens) - same} answers differ by rounding)"
        yield f"{guesses} | {plain.steps / one.steps:.2f} | {came} | {ratio:.2f}{rest}"


def served(engine: LoadedEngine, prompts: list[list[int]], guesses: int, temperature: float) -> Run:
    executor = Executor(engine, proposer=engine.proposer if guesses else None)
    sampling = Sampling(seed=0, temperature=temperature, top_p=0.9 if temperature else 1.0)
    loop = Loop(
        executor,
        EngineConfig(model="", device="cpu", max_sequences=64),
        (lambda blocks, fit: Speculation(blocks, EngineProposer(), guesses)) if guesses else None,
    )
    members = add(loop, prompts, Limits(MAX_ANSWER_TOKENS, (END_OF_TURN_ID,)), sampling)
    seconds, steps, counts, begin = 0.0, 0, [0, 0, 0, 0], time.thread_time()
    while loop.turn():
        took = time.thread_time() - begin
        assert loop.plan is not None and loop.result is not None
        if all(work.start >= work.prompt_tokens for work in loop.plan.works):
            seconds += took
            steps += len(loop.plan.works)
        counts = [sum(each) for each in zip(counts, counted(loop.plan, loop.result), strict=True)]
        begin = time.thread_time()
    return Run(answers(members), seconds, steps, *counts)


def counted(plan: StepPlan, result: StepResult) -> list[int]:
    right = [(len(plan.works[index].proposed), len(accepted)) for index, accepted in result.accepted.items()]
    return [len(right), sum(came > 0 for _, came in right), sum(n for n, _ in right), sum(came for _, came in right)]


def joined(parts: list[Run]) -> Run:
    tokens = [text for part in parts for text in part.tokens]
    sums = [sum(each) for each in zip(*(part[1:] for part in parts), strict=True)]
    return Run(tokens, sums[0], *map(int, sums[1:]))


def agreements(engine: LoadedEngine, draft: Path, prompts: list[list[int]]) -> Iterator[str]:
    alone = load_engine(
        EngineConfig(model=str(draft), device="cpu", dtype="bf16", kv_memory=64 << 20, max_sequences=1), quiet
    )
    for temperature in TEMPERATURES[1:]:
        runs = [served(engine, [text], 1, temperature) for text in prompts]
        promised = [
            promises(engine, alone, text, run.tokens[0], temperature) for text, run in zip(prompts, runs, strict=True)
        ]
        shared, rejected, apart = torch.cat(promised, 1).mean(1).tolist()
        total = joined(runs)
        came = total.first / total.guessed
        yield f"| {temperature} | {came:.1%} | {shared:.1%} | {rejected:.1%} | {apart:.1%} |"


def promises(
    target: LoadedEngine, draft: LoadedEngine, text: list[int], answer: list[int], temperature: float
) -> torch.Tensor:
    """Returns `[3, tokens]` of an answer: how likely draws agree by shared noise, rejection sampling, and alone."""
    whole = text + answer
    drawn = torch.tensor(whole[len(text) :])
    samplings = [Sampling(seed=0, temperature=temperature, top_p=0.9)] * len(drawn)
    rows = [Executor(each).logits(whole[:-1], 0)[len(text) - 1 :] for each in (target, draft)]
    likeliest = [drawn, rows[1].argmax(-1)]
    p, q = (processed(each, samplings, known).softmax(-1) for each, known in zip(rows, likeliest, strict=True))
    return torch.stack((by_shared_noise(p, q), by_rejection(p, q), independent(p, q)))


if __name__ == "__main__":
    main()
