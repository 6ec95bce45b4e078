"""Measures a host's work for a step on a GPU: Python's time until the last launch, without a GPU.

    python -m benchmarks.steps.host_time [--shapes llama-3.2-1b,llama-3.1-8b] [--rounds 40] [--profile mixed]

The engine has a model's shape on tensors without memory. Launches go through Triton's own code up to the driver, where
kernels, compiled for sm_90 once, are launched to do nothing. PyTorch's matrix products, joins and allocations become an
allocation without memory, since those of `meta` are written in Python and slower than CUDA's. The time of cuBLAS, some
5 µs a product, and of the driver, 2 to 4 µs a launch, is missing.

*mixed* is a step of a chunk of a prompt beside decodes, and *chunk* a step of a chunk alone that signals its layers, as
in a prefill worker; neither is recorded. *recorded* is the mixed step, and *decode* a step of decodes, whose launches
are recorded: inputs, head and sampling remain. With --draft a draft model of that shape proposes tokens, *draft* by
recorded steps and *draft, not recorded* without; two tokens of each text have no KV before. Times are ms of this
thread's processor. The last column is the time in which an H100 reads the weights (3.35 TB/s), for each draft token
once: a shorter host time holds up no step.
"""

import argparse
import cProfile
import gc
import os
import platform
import pstats
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import thread_time
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from benchmarks.simulated.compile_only import compiling
from benchmarks.simulated.weightless import BLOCK_TOKENS, META, weightless_engine
from benchmarks.simulated.weightless_draft import WeightlessDraft
from contracts.messages.sampling import Sampling
from engine.backends.triton.graphs.decode_graphs import DecodeGraphs
from engine.backends.triton.graphs.mixed_graphs import MIXED_ROWS
from engine.executor import Executor
from engine.plan import PENDING_TOKEN, StepPlan, Work

H100_READ_RATE = 3.35e12
"""Bytes per second: NVIDIA H100 SXM, from its data sheet."""
CHUNK_TOKENS, TEXT_TOKENS, MAX_TEXT_TOKENS = 512, 2048, 8192
"""Tokens of a chunk, of the texts that are there already, and of the longest text."""
WARM_UP_STEPS = 3
PROFILED_STEPS = 10
MAX_PROFILE_LINES = 30
GREEDY = Sampling(seed=0, temperature=0.0)
Step = Callable[[], None]


class Steps:
    """Steps of one engine, each a token further; with `adapters`, the texts have each of them, or none, in turns."""

    def __init__(self, shape: str, decodes: int, adapters: int) -> None:
        blocks = (decodes + 1) * MAX_TEXT_TOKENS // BLOCK_TOKENS + 1
        tokens = decodes + CHUNK_TOKENS
        padded = next((rows for rows in MIXED_ROWS if rows >= tokens), 0)
        engine = weightless_engine(shape, blocks, decodes, MAX_TEXT_TOKENS, adapters=adapters, mixed_tokens=padded)
        assert isinstance(engine.decode_steps, DecodeGraphs)
        _record(engine.decode_steps)
        self.weights_bytes = engine.model.weights_bytes()
        self._executor = Executor(engine)
        self._unrecorded = Executor(replace(engine, decode_steps=None))
        self._signalling = Executor(replace(engine, decode_steps=None), lambda plan, group, layer: None)
        self._decodes = decodes
        self._adapters = adapters
        self._at = 0
        self._first = True  # of the steps that go on with each other's tokens
        self._tables = [
            list(range(1 + row * MAX_TEXT_TOKENS // BLOCK_TOKENS, 1 + (row + 1) * MAX_TEXT_TOKENS // BLOCK_TOKENS))
            for row in range(decodes + 1)
        ]

    def by_name(self) -> dict[str, Step]:
        return {"mixed": self.mixed, "chunk": self.chunk, "recorded": self.recorded, "decode": self.decode}

    def mixed(self) -> None:
        self._unrecorded.launch(self._plan(chunk=True, decodes=self._decodes))

    def recorded(self) -> None:
        self._executor.launch(self._plan(chunk=True, decodes=self._decodes))

    def chunk(self) -> None:
        self._signalling.launch(self._plan(chunk=True, decodes=0))

    def decode(self) -> None:
        self._executor.launch(self._plan(chunk=False, decodes=self._decodes))

    def _plan(self, *, chunk: bool, decodes: int) -> StepPlan:
        at, self._at = self._at, self._at + 1
        works = []
        for row in range(decodes):
            start = TEXT_TOKENS + at
            table = self._tables[row][: start // BLOCK_TOKENS + 1]
            token, adapter = 7 if self._first else PENDING_TOKEN, self._adapter(row)
            works.append(Work(row, start, [token], (table,), GREEDY, (0,), at, adapter=adapter))
        self._first = not decodes
        if chunk:
            table = self._tables[-1][: (TEXT_TOKENS + CHUNK_TOKENS) // BLOCK_TOKENS]
            sequence, chunk_tokens = self._decodes, [7] * CHUNK_TOKENS  # of which more is to come
            works.append(Work(sequence, TEXT_TOKENS, chunk_tokens, (table,), None, adapter=self._adapter(sequence)))
        return StepPlan(at, works)

    def _adapter(self, row: int) -> str:
        return str(row % (self._adapters + 1) or "") if self._adapters else ""


def _lighten() -> None:
    join_columns: Any = torch.cat

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=META)

    def new_empty(like: Tensor, size: Sequence[int] | int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(size, dtype=dtype or like.dtype, device=META)

    def empty_like(like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, device=META)

    def join(parts: Sequence[Tensor], dim: int = 0) -> Any:
        if dim:
            return join_columns(parts, dim)
        return torch.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype=parts[0].dtype, device=META)

    lighter: tuple[Any, Any, Any] = torch, Tensor, functional
    lighter[0].cat, lighter[0].empty_like, lighter[1].new_empty, lighter[2].linear = (
        join,
        empty_like,
        new_empty,
        product,
    )


def _steps(shape: str, given: argparse.Namespace) -> tuple[dict[str, Step], int]:
    steps = Steps(shape, given.decodes, given.adapters)
    return steps.by_name(), steps.weights_bytes


def _drafts(shape: str, given: argparse.Namespace) -> tuple[dict[str, Step], int]:
    draft = WeightlessDraft(shape, given.decodes, given.guesses, TEXT_TOKENS, MAX_TEXT_TOKENS)
    _record(draft.steps)
    steps: dict[str, Step] = {
        "draft": partial(draft.propose, recorded=True),
        "draft, not recorded": partial(draft.propose, recorded=False),
    }
    return steps, given.guesses * draft.weights_bytes


def _record(graphs: DecodeGraphs) -> None:
    for held in (graphs, graphs._mixed):
        if held is None:
            continue
        replays: Any = held._replays
        replays |= {size: partial(_hidden, replay()) for size, replay in replays.items()}


def _hidden(found: Tensor) -> Tensor:
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.steps.host_time", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shapes", default="llama-3.2-1b,llama-3.1-8b", help="names in benchmarks/models/shapes.py")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--decodes", type=int, default=32, help="sequences that decode")
    parser.add_argument("--adapters", type=int, default=0, help="adapters of the sequences")
    parser.add_argument("--draft", default="", help="shape of a draft model")
    parser.add_argument("--guesses", type=int, default=5, help="draft tokens of a sequence")
    parser.add_argument(
        "--profile", choices=("mixed", "chunk", "recorded", "decode", "draft"), help="list where this step's time goes"
    )
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    _lighten()
    python, cores = platform.python_version(), os.cpu_count()
    print(
        f"{platform.machine()}, {cores} cores, Python {python}, torch {torch.__version__}, triton {triton.__version__}"
    )
    print(
        f"{given.decodes} decodes behind {TEXT_TOKENS} tokens, chunks of {CHUNK_TOKENS}, {given.adapters} adapters;"
        " ms on the host\n"
    )
    print("| shape | step | fastest | median | kernels launched | weights on an H100 |\n|" + " --- |" * 6)
    with compiling() as driver, torch.inference_mode():
        for shape in filter(None, [*given.shapes.split(","), given.draft]):
            made: list[tuple[dict[str, Step], int]] = []
            make = partial(_drafts if shape == given.draft else _steps, shape, given)
            _, error = driver.launch(lambda: made.append(make()))  # noqa: B023 - it is run here
            if error:
                print(f"{shape}: {error}", file=sys.stderr)
                return 1
            ((steps, weights_bytes),) = made
            floor = weights_bytes / H100_READ_RATE * 1e3
            for name, step in steps.items():
                _, error = driver.launch(step)
                if error:
                    print(f"{shape}, {name}: {error}", file=sys.stderr)
                    return 1
                step()
                before = driver.launched
                step()
                launched = driver.launched - before
                best, middle = fastest_and_median(step, given.rounds)
                print(f"| {shape} | {name} | {best:.2f} | {middle:.2f} | {launched} | {floor:.2f} |", flush=True)
                if given.profile == name:
                    profiled(step)
    return 0


def fastest_and_median(step: Step, rounds: int) -> tuple[float, float]:
    gc.collect()
    gc.freeze()  # as a worker does when it has started
    times = []
    for index in range(-WARM_UP_STEPS, rounds):
        begin = thread_time()
        step()
        if index >= 0:
            times.append((thread_time() - begin) * 1e3)
    return min(times), median(times)


def profiled(step: Step) -> None:
    with cProfile.Profile() as profile:
        for _ in range(PROFILED_STEPS):
            step()
    pstats.Stats(profile).sort_stats("tottime").print_stats(MAX_PROFILE_LINES)


if __name__ == "__main__":
    sys.exit(main())
