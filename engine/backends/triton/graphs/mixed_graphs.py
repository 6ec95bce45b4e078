"""Records mixed steps, of decodes beside chunks of prompts, and replays them: one launch by the host.

Decodes may verify draft tokens, as many as each has.

Recordings are of row counts: a step is padded to the next one. Large steps are not recorded: the device computes them
for longer than the host launches them, and would compute their padding too.

All rows go through both attention kernels. Prefill attention writes zeros for the rows of decodes and of padding, and
then decode attention finds its rows by numbers on the device, and writes them.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.backends.triton.attention.attention_step import (
    DecodeSequences,
    KVGroupStep,
    PrefillChunks,
    SequenceTables,
    TritonAttentionStep,
)
from engine.backends.triton.attention.paged_attention import TritonAttention
from engine.backends.triton.graphs.mixed_inputs import ADAPTER, LOGIT_ROW, MAX_CHUNKS, POSITION, SLOT, MixedInputs
from engine.backends.triton.linear_layers.adapter_rows import recorded
from engine.model.batch import Batch, GroupTables, Sampled
from engine.model.model import Model
from engine.plan import StepPlan, Work
from kernels.attention.multi_query import MultiQuery

MIXED_ROWS = (16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576)
"""Row counts of recordings: a step computes at most twice its rows, and a large one a fifth more."""
Record = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Records a step, and returns the function that replays it."""


class MixedGraphs:
    """Records and replays the mixed steps of one model over one pool."""

    def __init__(
        self,
        model: Model[TritonAttentionStep],
        attention: TritonAttention,
        inputs: MixedInputs,
        rows: Sequence[int],
        longest: int,
        adapts: bool,
    ) -> None:
        """`rows` are the row counts of recordings, and `longest` is the tokens of the longest text."""
        self._model = model
        self._attention = attention
        self._inputs = inputs
        self._rows = rows
        self._longest = longest
        self._ways = (False, True) if adapts else (False,)
        self._replays: dict[tuple[int, bool], Callable[[], Tensor]] = {}

    def record(self, record: Record) -> None:
        for rows in reversed(self._rows):
            for adapted in self._ways:
                self._replays[rows, adapted] = record(partial(self.step, rows, adapted))

    def serves(self, plan: StepPlan) -> bool:
        works = plan.works
        decodes = self._decodes(works)
        return (
            decodes <= self._inputs.decodes
            and len(works) - decodes <= MAX_CHUNKS
            and sum(len(work.token_ids) for work in works) <= self._rows[-1]
            and not any(work.parents or work.prompt_rows for work in works)
        )

    def run(self, works: Sequence[Work], before: Sampled | None, adapters: Sequence[int] | None) -> Tensor:
        """Returns `[rows, hidden]`: a row for each sampled work, and for each of its draft tokens."""
        tokens = sum(len(work.token_ids) for work in works)
        rows = next(rows for rows in self._rows if rows >= tokens)
        sampled = self._inputs.fill(works, self._decodes(works), rows, before, adapters)
        return self._replays[rows, adapters is not None]()[:sampled]

    def step(self, rows: int, adapted: bool = False) -> Tensor:
        """Computes hidden states `[logit rows, hidden]`; rows behind the works' rows are arbitrary."""
        inputs, attention = self._inputs, self._attention
        lengths, firsts, counts = inputs.of_decodes()
        starts, chunk_lengths = inputs.of_chunks()
        cuts = attention.groups_that_cut(self._longest)
        splits = attention.split_plans(
            inputs.planned(attention.words_of_plan(inputs.decodes, cuts)), inputs.decodes, cuts
        )
        steps = []
        for group in range(attention.groups):
            of_decodes, of_chunks = inputs.block_tables(group)
            decodes = DecodeSequences(
                SequenceTables(of_decodes, lengths),
                splits.get(group),
                rows,
                MultiQuery(firsts, counts, inputs.per_sequence),
            )
            chunks = PrefillChunks(SequenceTables(of_chunks, chunk_lengths), starts, rows, (), (), first_row=0)
            steps.append(KVGroupStep(inputs.field(SLOT + group, rows), decodes, chunks))
        sampled = min(inputs.decodes * inputs.per_sequence + MAX_CHUNKS, rows)
        wanted = inputs.field(LOGIT_ROW, sampled)
        # As many rows as there are tokens are taken for all rows, in order.
        logit_rows = wanted if sampled < rows else torch.arange(rows, device=wanted.device)
        slots = inputs.field(ADAPTER, rows)
        batch = Batch(
            token_ids=inputs.token_ids(rows),
            positions=inputs.field(POSITION, rows),
            groups=tuple(GroupTables(step.slots, step.decodes.tables.blocks, logit_rows[:0]) for step in steps),
            query_start=firsts,
            logit_rows=logit_rows,
            query_lengths=np.ones(0, np.int64),
            kv_lengths=np.ones(0, np.int64),
            adapters=recorded(slots, slots[logit_rows]) if adapted else None,
        )
        hidden = self._model.forward(batch, attention.step(steps), lambda layer: None)
        return hidden if sampled < rows else hidden[wanted]

    def _decodes(self, works: Sequence[Work]) -> int:
        """Counts the works of one token and its draft tokens at the beginning; later ones are computed as chunks."""
        own = (len(work.token_ids) == 1 + len(work.proposed) <= self._inputs.per_sequence for work in works)
        return next((index for index, decodes in enumerate(own) if not decodes), len(works))
