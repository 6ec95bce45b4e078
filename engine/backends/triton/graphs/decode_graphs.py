"""Records decode steps once and replays them: one launch by the host instead of hundreds.

A CUDA graph has fixed shapes and addresses. Graphs are recorded for several batch sizes and, if sequences may have
draft tokens, a second time with the maximum of draft tokens. A smaller batch is padded with null sequences, missing
draft tokens with padding rows, and all inputs have fixed addresses (`decode_inputs.py`). The head is not recorded:
logits of padding would be wasted, and each size would keep its own logits. All graphs are recorded when the worker
starts. On a CPU, where Triton's interpreter tests the code, a recording is the step itself.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.backends.triton.attention.attention_step import (
    DecodeSequences,
    KVGroupStep,
    SequenceTables,
    TritonAttentionStep,
)
from engine.backends.triton.attention.paged_attention import TritonAttention
from engine.backends.triton.graphs.decode_inputs import DecodeInputs
from engine.backends.triton.graphs.mixed_graphs import MixedGraphs
from engine.backends.triton.linear_layers.adapter_rows import recorded
from engine.model.batch import Batch, GroupTables, Sampled
from engine.model.model import Model
from engine.plan import StepPlan, Work
from infra.process.status import Progress
from kernels.attention.multi_query import MultiQuery

MAX_VERIFIED_ROWS = 256
"""Maximum rows of a recorded step with drafts: beyond, the device is compute-bound and drafts no longer pay."""
Replay = Callable[[], Tensor]
"""Replays a recorded step; returns hidden states, which the next replay overwrites."""


def ladder(most: int) -> list[int]:
    """Returns the recorded batch sizes, up to `most`.

    No step computes more than twice its rows; a large step at most a quarter more.
    """
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, most, 64)]
    return sorted({*(size for size in sizes if size < most), most})


def most_with(per_sequence: int, most: int) -> int:
    """Returns the maximum sequences of a recorded step with `each` tokens for each sequence."""
    return most if per_sequence == 1 else max(1, min(most, MAX_VERIFIED_ROWS // per_sequence))


class DecodeGraphs:
    """Records and replays the decode steps of one model over one pool."""

    def __init__(
        self,
        model: Model[TritonAttentionStep],
        attention: TritonAttention,
        inputs: Mapping[int, DecodeInputs],
        most: int,
        longest: int,
        progress: Progress,
        adapts: bool = False,
        mixed: MixedGraphs | None = None,
        *,
        trees: bool = False,
    ) -> None:
        """Records batches of up to `most` sequences of up to `longest` tokens; with `adapts`, also with adapters.

        `inputs` are by maximum tokens of a sequence in a step. Steps without adapters have separate recordings. `mixed`
        runs steps with chunks of prompts. `trees`: draft tokens may form trees.
        """
        self._model = model
        self._attention = attention
        self._inputs = inputs
        self._longest = longest
        self._mixed = mixed
        self._trees = trees
        self._sizes = {per_sequence: ladder(most_with(per_sequence, most)) for per_sequence in inputs}
        self._replays: dict[tuple[int, int, bool], Replay] = {}
        memory: Any = None  # shared: two graphs never run at once
        shapes = [
            (size, per_sequence)
            for per_sequence in sorted(inputs, reverse=True)
            for size in reversed(self._sizes[per_sequence])
        ]
        for done, (size, per_sequence) in enumerate(shapes):
            progress("recording decode steps", 100.0 * done / len(shapes))
            for adapted in (False, True) if adapts else (False,):
                step = partial(self._step, size, adapted, per_sequence)
                self._replays[size, per_sequence, adapted], memory = record(step, attention.device, memory)
        if mixed is not None:
            progress("recording mixed steps", 0.0)
            mixed.record(lambda step: record(step, attention.device, memory)[0])

    def serves(self, plan: StepPlan) -> bool:
        return self._serves(plan.works) or (self._mixed is not None and self._mixed.serves(plan))

    def _serves(self, works: Sequence[Work]) -> bool:
        """Returns whether each work is the next token of one sample with a supported number of drafts."""
        per_sequence = self._tokens_per_sequence(works)
        return (
            per_sequence > 0
            and len(works) <= self._sizes[per_sequence][-1]
            and all(self._decodes(work) for work in works)
        )

    def run(self, works: Sequence[Work], before: Sampled | None, adapters: Sequence[int] | None = None) -> Tensor:
        if self._mixed is not None and not self._serves(works):
            return self._mixed.run(works, before, adapters)
        per_sequence = self._tokens_per_sequence(works)
        size = next(size for size in self._sizes[per_sequence] if size >= len(works))
        self._inputs[per_sequence].fill(works, size, before, adapters)
        rows = sum(len(work.token_ids) for work in works)
        return self._replays[size, per_sequence, adapters is not None]()[:rows]

    def _tokens_per_sequence(self, works: Sequence[Work]) -> int:
        """Returns the recorded tokens per sequence that fit these works; 0 if none fits."""
        longest = max(len(work.token_ids) for work in works)
        return min((per_sequence for per_sequence in self._inputs if per_sequence >= longest), default=0)

    def _decodes(self, work: Work) -> bool:
        single = work.sampling is not None and len(work.samples) == 1 and not work.prompt_rows
        return single and len(work.token_ids) == 1 + len(work.proposed) and (self._trees or not work.parents)

    def _step(self, sequences: int, adapted: bool = False, per_sequence: int = 1) -> Tensor:
        """Computes hidden states `[rows, hidden]` in the order of the step's works."""
        inputs, rows = self._inputs[per_sequence], sequences * per_sequence
        kv_lengths, groups = inputs.kv_lengths(sequences), range(self._attention.groups)
        cuts = self._attention.groups_that_cut(self._longest)
        planned = inputs.planned(self._attention.words_of_plan(sequences, cuts))
        splits = self._attention.split_plans(planned, sequences, cuts)
        multi_query = None
        if per_sequence > 1:
            firsts = torch.arange(0, rows, per_sequence, dtype=torch.int32, device=kv_lengths.device)
            tree_mask = inputs.tree_mask(rows) if self._trees else None
            multi_query = MultiQuery(firsts, inputs.counts(sequences), per_sequence, tree_mask)
        steps = []
        for group in groups:
            tables = SequenceTables(inputs.block_tables(sequences, group), kv_lengths)
            decodes = DecodeSequences(tables, splits.get(group), rows, multi_query, padded=per_sequence > 1)
            steps.append(KVGroupStep(inputs.slots(rows, group), decodes, None))
        every = torch.arange(rows, device=kv_lengths.device)
        batch = Batch(
            token_ids=inputs.token_ids(rows),
            positions=inputs.positions(rows),
            groups=tuple(GroupTables(step.slots, step.decodes.tables.blocks, every[:0]) for step in steps),
            query_start=every[::per_sequence],
            logit_rows=every,
            query_lengths=np.full(sequences, per_sequence, np.int64),
            kv_lengths=np.full(sequences, self._longest, np.int64),
            adapters=recorded(inputs.adapters(rows)) if adapted else None,
        )
        hidden = self._model.forward(batch, self._attention.step(steps), lambda layer: None)
        return hidden[inputs.order(rows)]


def record(step: Callable[[], Tensor], device: torch.device, memory: Any) -> tuple[Replay, Any]:
    """Records a step as a CUDA graph, in the shared `memory` of earlier recordings, if any.

    Returns the replay function, and the memory. The step runs once before: compiling kernels and setting up libraries
    must not happen while a graph is recorded.
    """
    if device.type != "cuda":
        return step, None
    step()
    cuda: Any = torch.cuda
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):  # NCCL's watchdog looks at its events
        hidden = step()

    def replay() -> Tensor:
        graph.replay()
        return hidden

    return replay, graph.pool()
