"""Measures a decode step without the model: scheduler, batch, sampler, for 1 to 512 sequences.

    python -m benchmarks.steps [--threads 2] [--rounds 5] [--cpu-backend torch]

Scheduler, block manager, `build_batch` and samplers are real; tokens are random. *plan* is the scheduler's `plan` and
`take_moves`, *apply* takes the result and reads the load, as a worker does after each step. All times are the fastest
round's; scheduler and batch are one thread's, and on its own clock.
"""

import argparse
import platform
import random
import sys
import time
from typing import NamedTuple

import torch

from contracts.errors import NativeError
from contracts.ids import AttemptKey
from contracts.kv.spec import KVGroup, KVSpec
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from engine.backends.native.library import load
from engine.backends.native.sampler import NativeSampler
from engine.backends.reference.sampler import ReferenceSampler
from engine.backends.sampler import Draw, Sampler
from engine.blocks.manager import BlockManager
from engine.model.batch import block_tables, build_batch
from engine.plan import StepPlan, StepResult
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.sequence import Sequence

BATCHES = (1, 8, 32, 64, 512)
PROMPT_TOKENS = 256
TIMED_STEPS = 64
BLOCK_TOKENS = 16
VOCABULARIES = (49_152, 151_936)
ROWS = (1, 32, 256)
SAMPLINGS = {
    "greedy": Sampling(seed=0, temperature=0.0),
    "temperature": Sampling(seed=0),
    "top_p": Sampling(seed=0, top_p=0.9),
    "top_k, top_p, min_p": Sampling(seed=0, top_k=50, top_p=0.9, min_p=0.02),
}
SINGLE = KVSpec((KVGroup("full", (0,), BLOCK_TOKENS, 1),), "", "")
CPU = torch.device("cpu")


class Parts(NamedTuple):
    """The seconds of one decode step's parts."""

    plan: float
    batch: float
    apply: float


def steps(batch: int) -> Parts:
    tokens = PROMPT_TOKENS + TIMED_STEPS + 2
    blocks = BlockManager(SINGLE, [1 + batch * -(-tokens // BLOCK_TOKENS)])
    scheduler = Scheduler(
        blocks, SchedulerLimits(max_batch_tokens=batch * PROMPT_TOKENS, max_sequences=batch, max_model_len=tokens)
    )
    draw = random.Random(0)
    for number in range(batch):
        prompt = Prompt([draw.randrange(VOCABULARIES[0]) for _ in range(PROMPT_TOKENS)], PROMPT_TOKENS)
        key, limits = AttemptKey(str(number), 0, 1), Limits(max_tokens=tokens)
        sampling = Sampling(seed=number, temperature=0.0)
        scheduler.add(Sequence(key, "benchmark", prompt, float("inf"), sampling, limits))
    while scheduler.load().waiting or scheduler.load().output_tokens < batch:
        _answer(scheduler, _planned(scheduler), draw)
    tables = block_tables(1)
    spent = [0.0, 0.0, 0.0]
    for _ in range(TIMED_STEPS):
        begin = time.thread_time()
        plan = _planned(scheduler)
        planned = time.thread_time()
        build_batch(plan, BLOCK_TOKENS, CPU, None, tables)
        built = time.thread_time()
        result = StepResult(plan.step, [[draw.randrange(VOCABULARIES[0])] for _ in plan.works])
        before = time.thread_time()
        scheduler.apply(result, 0.0)
        scheduler.load()
        applied = time.thread_time()
        for part, seconds in enumerate((planned - begin, built - planned, applied - before)):
            spent[part] += seconds
        assert len(plan.works) == batch, "a step without all sequences"
    return Parts(*(each / TIMED_STEPS for each in spent))


def _planned(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.plan(0.0)
    assert plan is not None, "work, but no plan"
    scheduler.take_moves()
    return plan


def _answer(scheduler: Scheduler, plan: StepPlan, draw: random.Random) -> None:
    tokens = [[draw.randrange(VOCABULARIES[0])] if work.sampling is not None else [] for work in plan.works]
    scheduler.apply(StepResult(plan.step, tokens), 0.0)


def sampling(sampler: Sampler, rows: int, vocabulary: int, settings: Sampling) -> float:
    logits = torch.randn((rows, vocabulary), generator=torch.Generator().manual_seed(0)) * 3
    draws = [Draw(settings, (0,), row) for row in range(rows)]
    own = logits.clone()
    begin = time.perf_counter()
    sampler.sample(own, draws)
    return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__.partition("\n")[0])
    parser.add_argument("--cpu-backend", default="native", choices=("native", "torch"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    try:
        sampler: Sampler = NativeSampler(load()) if given.cpu_backend == "native" else ReferenceSampler()
    except NativeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{platform.processor() or platform.machine()}, {given.threads} threads; Python {platform.python_version()}")
    print("| sequences | plan µs | batch µs | apply µs | in all µs | per sequence µs |\n" + "| --- " * 6 + "|")
    for batch in BATCHES:
        found = min((steps(batch) for _ in range(given.rounds)), key=sum)
        cells = [f"{1e6 * each:.0f}" for each in (*found, sum(found))]
        print(f"| {batch} | {' | '.join(cells)} | {1e6 * sum(found) / batch:.2f} |", flush=True)
    print(f"\n| {given.cpu_backend} sampling, µs | {' | '.join(SAMPLINGS)} |\n" + "| --- " * (1 + len(SAMPLINGS)) + "|")
    for vocabulary in VOCABULARIES:
        for rows in ROWS:
            cells = []
            for settings in SAMPLINGS.values():
                best = min(sampling(sampler, rows, vocabulary, settings) for _ in range(given.rounds))
                cells.append(f"{1e6 * best:.0f}")
            print(f"| {rows} x {vocabulary} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
