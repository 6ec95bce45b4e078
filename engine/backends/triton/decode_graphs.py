"""Records decode steps once and replays them: one launch by the host, not hundreds.

A CUDA graph has fixed shapes and addresses. So there is one for each of some sizes of a batch; a smaller batch is
padded with null sequences, and all inputs lie at places that stay (`decode_inputs.py`). The head is not in it: logits
of padding would be wasted, and those of every size kept. All are recorded when the worker starts. On a CPU, where
Triton's interpreter checks all of it, a record is the step itself.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.process.status import Progress
from engine.backends.triton.adapted import recorded
from engine.backends.triton.attention import GroupStep, Singles, Tables, TritonAttention, TritonAttentionStep
from engine.backends.triton.decode_inputs import DecodeInputs
from engine.model.batch import Batch, GroupTables, Sampled
from engine.model.model import Model
from engine.plan import Plan, Work

Replay = Callable[[], Tensor]
"""Runs a recorded step; returns its hidden states, which the next run of the same record overwrites."""


def ladder(most: int) -> list[int]:
    """Returns the sizes of batches that are recorded, up to `most`.

    No step computes more than twice its rows, no large one more than a quarter too many.
    """
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, most, 64)]
    return sorted({*(size for size in sizes if size < most), most})


class DecodeGraphs:
    """Records, and replays, the decode steps of one model over one pool."""

    def __init__(
        self,
        model: Model[TritonAttentionStep],
        attention: TritonAttention,
        inputs: DecodeInputs,
        most: int,
        longest: int,
        progress: Progress,
        adapts: bool = False,
    ) -> None:
        """Records batches of up to `most` sequences of up to `longest` tokens; if it `adapts`, with adapters as well.

        Steps without adapters have records of their own, in which nothing asks for any.
        """
        self._model = model
        self._attention = attention
        self._inputs = inputs
        self._longest = longest
        self._sizes = ladder(most)
        self._replays: dict[tuple[int, bool], Replay] = {}
        memory: Any = None  # shared: two graphs never run at once
        for done, size in enumerate(reversed(self._sizes)):  # what the largest needs is enough for all
            progress("recording decode steps", 100.0 * done / len(self._sizes))
            for adapted in (False, True) if adapts else (False,):
                step = partial(self._step, size, adapted)
                self._replays[size, adapted], memory = record(step, attention.device, memory)

    def serves(self, plan: Plan) -> bool:
        """Tells whether every work is the next token of one sample."""
        works = plan.works
        return len(works) <= self._sizes[-1] and all(_decodes(work) for work in works)

    def run(self, works: Sequence[Work], before: Sampled | None, adapters: Sequence[int] | None = None) -> Tensor:
        """See `engine.backends.base.DecodeSteps`."""
        size = next(size for size in self._sizes if size >= len(works))
        self._inputs.fill(works, size, before, adapters)
        return self._model.logits(self._replays[size, adapters is not None]()[: len(works)])

    def _step(self, rows: int, adapted: bool = False) -> Tensor:
        """Computes hidden states `[rows, hidden]` in the order of the step's works."""
        inputs = self._inputs
        kv_lengths, groups = inputs.kv_lengths(rows), range(self._attention.groups)
        cuts = self._attention.groups_that_cut(self._longest)
        planned = inputs.planned(self._attention.words_of_plan(rows, cuts))
        pieces = self._attention.pieces(planned, rows, cuts)
        steps = []
        for group in groups:
            singles = Singles(Tables(inputs.block_tables(rows, group), kv_lengths), pieces.get(group))
            steps.append(GroupStep(inputs.slots(rows, group), singles, None))
        every = torch.arange(rows, device=kv_lengths.device)
        batch = Batch(
            token_ids=inputs.token_ids(rows),
            positions=inputs.positions(rows),
            groups=tuple(GroupTables(step.slots, step.singles.tables.blocks, every[:0]) for step in steps),
            query_start=every,
            logit_rows=every,
            query_lengths=np.ones(rows, np.int64),
            kv_lengths=np.full(rows, self._longest, np.int64),
            adapters=recorded(inputs.adapters(rows)) if adapted else None,
        )
        hidden = self._model.forward(batch, self._attention.step(steps), lambda layer: None)
        return hidden[inputs.order(rows)]


def _decodes(work: Work) -> bool:
    return len(work.token_ids) == 1 and work.sampling is not None and len(work.samples) == 1 and not work.prompt_rows


def record(step: Callable[[], Tensor], device: torch.device, memory: Any) -> tuple[Replay, Any]:
    """Records a step as a CUDA graph, in the `memory` of those recorded before, if any.

    Returns what replays it, and the memory that it shares with others. The step runs once before: kernels are compiled
    and libraries set up by what must not happen while a graph is recorded.
    """
    if device.type != "cuda":
        return step, None
    step()
    cuda: Any = torch.cuda
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, pool=memory):
        hidden = step()

    def replay() -> Tensor:
        graph.replay()
        return hidden

    return replay, graph.pool()
