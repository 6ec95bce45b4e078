"""Measures a model on ranks of one thread each, beside one rank of as many threads: `python -m benchmarks.steps.ranks`.

    python -m benchmarks.steps.ranks [--ranks 2] [--dtype fp32] [--rounds 20]

All compute the same steps in alternating rounds: decode steps of a batch, and a whole prompt. *times* is the median,
over rounds, of the ratio of both times; *at best* is the ratio of the least times, which other processes of a busy
machine disturb least. *work* is the least processor time of rank 0 over that of one rank of one thread, divided by the
ranks: what is above 1 is not divided, or exchanges; waiting does not count. *exchanging* is the part of rank 0's time
in its collective: copies, sums, and waiting for other ranks. The table of memory counts what each rank holds.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import torch

from benchmarks.models.random_model import make
from benchmarks.processes import as_a_worker
from benchmarks.processes.in_process import GREEDY, quiet
from benchmarks.report import head, in_turns, machine, row
from contracts.kv.spec import blocks_for
from engine.executor import Executor
from engine.parallel.rank_group import RankGroup
from engine.plan import StepPlan, Work
from engine.start.load import LoadedEngine, load_engine
from infra.config.engine import EngineConfig
from worker.ranks.starting import RankProcesses

RANDOM_MODEL = "142m"
"""Shape of `benchmarks.models.random_model`: 8 query and 4 KV heads, which ranks can divide."""
BATCH, CONTEXT_TOKENS, STEPS_OF_TURN = 32, 128, 4
PROMPT_TOKENS = 1024
MAX_TIMES = {"decode": 1.15, "prompt": 1.1}
"""Targets: time on two ranks of one thread over that on one rank of two threads."""
ONE_THREAD = "one rank of one thread"


class Measured(NamedTuple):
    seconds: float
    work: float  # seconds of rank 0's thread on a processor
    exchanging: float  # seconds of rank 0


class TimedCollective:
    """A collective whose calls are timed."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return partial(self._timed, getattr(self._own, name))

    def _timed(self, call: Callable[..., Any], *given: Any) -> Any:
        begin = perf_counter()
        found = call(*given)
        self.seconds += perf_counter() - begin
        return found


class Width:
    """One width's engine, with the same texts as the other's."""

    def __init__(self, engine: LoadedEngine, threads: int, collective: TimedCollective | None = None) -> None:
        self.engine = engine
        self.ranks = engine.group.shard.ranks
        self._executor = Executor(engine)
        self._threads = threads
        self._collective = collective
        self._numbers = iter(range(1 << 30))
        generator = torch.Generator().manual_seed(0)
        vocabulary = engine.model_config.vocab_size
        self._prompt = torch.randint(vocabulary, (PROMPT_TOKENS,), generator=generator).tolist()
        self._tokens = torch.randint(vocabulary, (BATCH,), generator=generator).tolist()

    def decode(self) -> Measured:
        """Measures one of some steps that all compute the token behind the same context."""
        block = self.engine.pool.spec.groups[0].block_tokens
        count = blocks_for(CONTEXT_TOKENS + 1, block)

        def table(index: int) -> list[int]:
            return list(range(1 + index * count, 1 + (index + 1) * count))

        works = [Work(i, CONTEXT_TOKENS, [token], (table(i),), GREEDY) for i, token in enumerate(self._tokens)]
        return self._measured(works, STEPS_OF_TURN)

    def prompt(self) -> Measured:
        table = list(range(1, 1 + blocks_for(PROMPT_TOKENS, self.engine.pool.spec.groups[0].block_tokens)))
        return self._measured([Work(0, 0, self._prompt, (table,), GREEDY)], 1)

    def _measured(self, works: list[Work], steps: int) -> Measured:
        torch.set_num_threads(self._threads)
        work, exchanged, begin = thread_time(), self._exchanged(), perf_counter()
        for _ in range(steps):
            self._executor.launch(StepPlan(next(self._numbers), works))
            assert all(self._executor.collect().tokens)
        seconds = perf_counter() - begin
        return Measured(*(each / steps for each in (seconds, thread_time() - work, self._exchanged() - exchanged)))

    def _exchanged(self) -> float:
        return 0.0 if self._collective is None else self._collective.seconds


@contextmanager
def widths(directory: Path, ranks: int, dtype: Any) -> Iterator[dict[str, Width]]:
    config = EngineConfig(
        model=str(directory), device="cpu", dtype=dtype, max_model_len=PROMPT_TOKENS + 16, kv_memory=1 << 30
    )
    with ExitStack() as stack:
        torch.set_num_threads(ranks)
        alone = Width(load_engine(config, quiet), ranks)
        torch.set_num_threads(1)
        others = RankProcesses(config, ranks, threads=1)
        stack.callback(others.close)
        timed = TimedCollective(others.group.collective)
        group = RankGroup(others.group.shard, timed)
        cut = Width(load_engine(config, quiet, group=group, peers=others), 1, timed)
        yield {"one rank": alone, f"{ranks} ranks": cut, ONE_THREAD: Width(alone.engine, 1)}


def print_memory(made: dict[str, Width]) -> None:
    print(head("", "weights of a rank", "of one rank's", "KV of a token on a rank", "of one rank's"))
    (whole, *_) = made.values()
    weights, token = whole.engine.model.weights_bytes(), whole.engine.pool.spec.token_bytes()
    for name, each in list(made.items())[:2]:
        own, kv = each.engine.model.weights_bytes(), each.engine.pool.spec.token_bytes()
        print(row(name, f"{own / 1e6:.1f} MB", f"{own / weights:.3f}", f"{kv} bytes", f"{kv / token:.3f}"))
    print()


def print_times(made: dict[str, Width], rounds: int) -> None:
    one, several, _ = made
    print(head("step", one, several, "times", "target", "at best", "work", "exchanging"))
    for name, target in MAX_TIMES.items():
        found = in_turns({width: getattr(each, name) for width, each in made.items()}, rounds)

        def figures(width: str, field: str, rounds: list[dict[str, Measured]] = found) -> list[float]:
            return [getattr(each[width], field) for each in rounds]

        times, least = ({width: take(figures(width, "seconds")) for width in made} for take in (median, min))
        ratio = median(
            ours / theirs for ours, theirs in zip(figures(several, "seconds"), figures(one, "seconds"), strict=True)
        )
        work = min(figures(several, "work")) / (min(figures(ONE_THREAD, "work")) / made[several].ranks)
        cells = f"{1e3 * times[one]:.1f} ms", f"{1e3 * times[several]:.1f} ms", f"{ratio:.2f}", target
        share = median(figures(several, "exchanging")) / times[several]
        print(row(name, *cells, f"{least[several] / least[one]:.2f}", f"{work:.2f}", f"{100 * share:.0f}%"), flush=True)


def main() -> int:
    parser = as_a_worker.options("ranks", __doc__ or "", rounds=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--model", default="", help="a model's directory; without it, one with random weights is made")
    given = parser.parse_args()

    def measure() -> None:
        with TemporaryDirectory() as made, ExitStack() as stack:
            directory = Path(given.model or made)
            if not given.model:
                make(directory, RANDOM_MODEL)
            both = stack.enter_context(widths(directory, given.ranks, given.dtype))
            load = " ".join(f"{each:.1f}" for each in os.getloadavg())
            print(f"{machine(given.ranks)}; {given.model or RANDOM_MODEL} in {given.dtype}; load {load}\n")
            print_memory(both)
            print_times(both, given.rounds)

    return as_a_worker.run(measure, given.threads)


if __name__ == "__main__":
    sys.exit(main())
