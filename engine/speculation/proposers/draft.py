"""Drafts with a small model that has the target's vocabulary and runs a few steps ahead of the target.

(Leviathan et al., "Fast inference from transformers via speculative decoding", 2023; Chen et al., 2023.) Each draft
token is drawn with the target's filters and the noise of its seed, sample and output index: where both models'
distributions are similar, both draw the same token.

Tokens without draft KV, such as a whole prompt after a handoff, are computed first, in chunks beside the target's
steps. Draft tokens are computed one position at a time, for all sequences at once. Where the backend records steps,
both are replayed: each position takes the previous one's tokens on the device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from contracts.kv.spec import blocks_for
from engine.backends.adjuster import is_adjusted
from engine.backends.base import Backend, DecodeSteps
from engine.backends.sampler import Draw
from engine.device import to_device
from engine.kv.pool import KVPool
from engine.model.attention import Attention
from engine.model.batch import Batch, BlockTables, GroupTables, Ints, Sampled, block_tables, build_batch
from engine.model.config import TextModel
from engine.model.model import Model
from engine.plan import PENDING_TOKEN, StepPlan, StepResult, Work
from engine.speculation.proposers.draft_kv import DraftKV
from engine.speculation.proposers.pending_drafts import DeviceDrafts, DraftedTokens
from engine.speculation.verify.verification import row_count

MAX_SEQUENCES_PER_STEP = 64
"""Maximum sequences that get draft tokens in one step."""
RECORDED_TOKENS = 2
"""Tokens without KV of a sequence whose draft tokens were all accepted: the last of these, and the one drawn after."""


@dataclass(frozen=True)
class DraftModel:
    """A draft model and its KV: a part of each block of the target's main KV group, and own additional blocks."""

    backend: Backend[Any, Any]
    model: Model[Any]
    config: TextModel
    pool: KVPool  # the target's blocks, followed by the draft's own
    attention: Attention[Any]  # over the pool
    group: int  # KV group of the target whose block tables the draft shares
    first_own_block: int  # own blocks take KV of draft tokens beyond the target's block table
    steps: DecodeSteps | None = None  # runs the draft's steps; None: they are not recorded


class _DraftRequest(NamedTuple):
    """A sequence whose missing draft KV is computed now, and which gets draft tokens if that completes it."""

    number: int  # of the work in the plan
    work: Work
    sampled: list[int]  # tokens that the step has sampled
    table: list[int]
    length: int  # of the text, in tokens
    stored: int  # leading tokens with draft KV
    missing: int  # next tokens, whose KV is computed now
    drafts: int  # draft tokens wanted; 0: more tokens lack KV than can be computed now

    def tokens(self) -> list[int]:
        known = self.work.tokens
        assert known is not None
        sampled = self.sampled[max(0, self.stored - len(known)) :]
        return [*known[self.stored :], *sampled][: self.missing]


def own_blocks(max_drafts: int, block_tokens: int) -> int:
    """Returns the blocks that a draft model needs beside the target's, for up to `max_drafts` draft tokens."""
    return MAX_SEQUENCES_PER_STEP * blocks_for(max_drafts, block_tokens)


class DraftProposer:
    """Drafts with a small model that has its own KV."""

    def __init__(self, draft: DraftModel, vocab: int, max_drafts: int, chunk: int) -> None:
        """Drafts up to `max_drafts` tokens of the target's `vocab` per sequence; at most `chunk` tokens a step."""
        self._draft = draft
        self._vocab = vocab
        self._max_drafts = max_drafts
        self._chunk = chunk
        self._block_size = draft.pool.spec.groups[0].block_tokens
        self._groups = len(draft.pool.spec.groups)
        self._own_blocks = blocks_for(max_drafts, self._block_size)  # of one sequence
        self._kv = DraftKV(self._block_size)
        self._first_tables = block_tables(self._groups)
        self._later_tables = BlockTables(0)

    def propose(self, plan: StepPlan, result: StepResult, hidden: Tensor) -> dict[int, DraftedTokens]:
        requests = self._requests(plan, result)
        if not requests:
            return {}
        ready = [each for each in requests if each.drafts]
        drafts = {each.number: drafted for each, drafted in zip(ready, self._draft_tokens(requests), strict=True)}
        for each in requests:
            capacity = len(each.table) * self._block_size  # KV in the draft's own blocks is lost
            end = min(each.stored + each.missing, capacity)
            drafted = drafts.get(each.number)
            stored = drafted.first(min(len(drafted) - 1, capacity - end)) if drafted is not None else ()
            self._kv.wrote(each.work.sequence, each.table, each.stored, end, stored)
        self._kv.trim(len(plan.works))
        return drafts

    def _requests(self, plan: StepPlan, result: StepResult) -> list[_DraftRequest]:
        """Returns the sequences to compute now: first sequences that get draft tokens, the most first; then chunks."""
        wanted = []
        for index, (work, sampled) in enumerate(zip(plan.works, result.tokens, strict=True)):
            if work.propose and sampled and len(work.samples) == 1:
                assert work.tokens is not None, "draft tokens are requested without the text's tokens"
                table, length = work.blocks[self._draft.group], len(work.tokens) + len(sampled)
                count = min(work.propose, self._max_drafts, self._draft.config.max_model_len - length)
                if count > 0:
                    stored = self._kv.stored_tokens(work.sequence, work.tokens, sampled, table)
                    missing = length - stored
                    wanted.append(_DraftRequest(index, work, sampled, table, length, stored, missing, count))
        wanted.sort(key=lambda each: each.missing)
        taken, budget = [], self._chunk
        for each in wanted[:MAX_SEQUENCES_PER_STEP]:
            if each.missing > budget:
                # Tokens beyond the table's blocks are computed with the draft tokens, when there is room for all.
                missing = min(budget, len(each.table) * self._block_size - each.stored)
                each = each._replace(missing=missing, drafts=0)
            if each.missing <= 0 or not self._knows_tokens(each):
                continue
            budget -= each.missing
            taken.append(each)
        return sorted(taken, key=lambda each: (-each.drafts, each.missing))

    def _knows_tokens(self, request: _DraftRequest) -> bool:
        vocab = self._draft.config.vocab_size
        return vocab >= self._vocab or max(request.tokens()) < vocab

    def _draft_tokens(self, requests: list[_DraftRequest]) -> list[DraftedTokens]:
        """Computes the missing tokens, then drafts position by position, for the leading requests that want drafts."""
        works = [self._work(row, each) for row, each in enumerate(requests)]
        states = self._compute_missing(works)
        ready = [each for each in requests if each.drafts]
        if not ready:
            return []
        compute_position = self._later_positions(works[: len(ready)], ready)
        texts = [_text(each) for each in ready]
        columns: list[Tensor] = []
        for position in range(ready[0].drafts):
            if position:
                states = compute_position(position, columns[-1])
            columns.append(self._sample(self._draft.model.logits(states), ready, position, texts))
        drafts = DeviceDrafts(torch.cat(columns))
        begins = np.cumsum([0, *map(len, columns)]).tolist()
        return [
            DraftedTokens(drafts, [row + begin for begin in begins[: each.drafts]]) for row, each in enumerate(ready)
        ]

    def _work(self, row: int, request: _DraftRequest) -> Work:
        needed = blocks_for(request.length + request.drafts - 1, self._block_size)
        table = request.table[:needed]  # the target's texts may be longer
        if request.drafts:
            first = self._draft.first_own_block + row * self._own_blocks
            table += range(first, first + needed - len(table))
        return Work(
            request.work.sequence,
            request.stored,
            request.tokens(),
            (table,) * self._groups,
            request.work.sampling if request.drafts else None,
        )

    def _compute_missing(self, works: list[Work]) -> Tensor:
        """Stores missing KV; returns the last token's state of each work that gets drafts, `[works, hidden]`."""
        draft = self._draft
        if draft.steps is not None:
            recorded = [_as_verification(work) for work in works]
            if draft.steps.serves(StepPlan(0, recorded)):
                states = draft.steps.run(recorded, None)
                ends = np.cumsum([row_count(work) for work in recorded if work.sampling is not None]) - 1
                return states if len(ends) == len(states) else states[to_device(ends, states.device)]
        batch = build_batch(StepPlan(0, works), self._block_size, draft.backend.device, None, self._first_tables)
        for group, tables in enumerate(batch.groups):
            draft.pool.enter(group, tables.fresh_blocks)
        return self._forward(batch)

    def _forward(self, batch: Batch) -> Tensor:
        draft = self._draft
        return draft.model.forward(batch, draft.attention.begin(batch), lambda layer: None)

    def _later_positions(self, works: list[Work], ready: list[_DraftRequest]) -> Callable[[int, Tensor], Tensor]:
        """Returns the function that computes the states of a later position from the previous one's draft tokens."""
        steps = self._draft.steps
        counts = [sum(each.drafts > position for each in ready) for position in range(ready[0].drafts)]
        if steps is None or not steps.serves(StepPlan(0, _position_works(works, ready, 1))):
            later = self._prepare_later(works, ready)
            return lambda position, before: self._forward(later.batch(position, before))
        return lambda position, before: steps.run(
            _position_works(works[: counts[position]], ready, position), Sampled(before, works[: len(before)])
        )

    def _prepare_later(self, works: list[Work], ready: list[_DraftRequest]) -> "_LaterSteps":
        """Prepares all steps after the first at once: their positions are known before their tokens."""
        size, device = self._block_size, self._draft.backend.device
        lengths = np.array([each.length for each in ready])
        drafts = [each.drafts for each in ready]
        counts = [blocks_for(each.length + each.drafts - 1, size) for each in ready]
        tables = self._later_tables.of(works, counts)
        positions = lengths + np.arange(-1, drafts[0] - 1)[:, None]  # [draft positions, sequences]
        blocks = np.minimum(positions // size, tables.shape[1] - 1)  # shorter drafts: clamped, unused
        slots = tables[np.arange(len(ready)), blocks] * size + positions % size
        on_device = to_device(np.concatenate((positions, slots, tables.T, np.arange(len(ready))[None])), device)
        return _LaterSteps(
            [sum(count > position for count in drafts) for position in range(drafts[0])],
            on_device[: drafts[0]],
            on_device[drafts[0] : 2 * drafts[0]],
            on_device[2 * drafts[0] : -1].T.reshape(-1).view(len(ready), -1),  # indices within one block are neighbours
            on_device[-1],
            lengths,
            self._groups,
        )

    def _sample(
        self, logits: Tensor, ready: list[_DraftRequest], position: int, texts: list[list[int] | None]
    ) -> Tensor:
        """Draws the draft tokens of a position, int64 `[rows]`, and appends them to `texts` (None: not needed)."""
        if logits.shape[1] > self._vocab:  # the target has no such tokens
            logits = logits[:, : self._vocab].contiguous()
        rows = ready[: len(logits)]
        works = [_sampled_work(each, position, text) for each, text in zip(rows, texts, strict=False)]
        if any(map(is_adjusted, works)):
            logits = self._draft.backend.adjuster.adjust(logits, works, None, None)
        draws = [Draw(work.sampling, work.samples, work.output_index) for work in works if work.sampling is not None]
        tokens, _ = self._draft.backend.sampler.sample(logits, draws)
        if any(text is not None for text in texts):
            for text, token in zip(texts, tokens.tolist(), strict=False):
                if text is not None:
                    text.append(token)
        return tokens


class _LaterSteps(NamedTuple):
    """Positions and KV slots of the steps after the first; each step has one token of each sequence."""

    counts: list[int]  # by position, the leading sequences that get a draft token there
    positions: Tensor  # int64 [draft positions, sequences]
    slots: Tensor  # int64 [draft positions, sequences]
    tables: Tensor  # int64 [sequences, blocks]
    every: Tensor  # int64 [sequences] 0, 1, …
    lengths: Ints  # [sequences], text without draft tokens
    groups: int

    def batch(self, position: int, before: Tensor) -> Batch:
        """Makes the step of a draft position; `before` are the draft tokens of the previous one, int64 `[rows]`."""
        count = self.counts[position]
        every = self.every[:count]
        tables = GroupTables(self.slots[position, :count], self.tables[:count], every[:0])
        return Batch(
            token_ids=before[:count],
            positions=self.positions[position, :count],
            groups=(tables,) * self.groups,
            query_start=every,
            logit_rows=every,
            query_lengths=np.ones(count, np.int64),
            kv_lengths=self.lengths[:count] + position,
        )


def _as_verification(work: Work) -> Work:
    """Presents a second missing token as a draft token to verify, so that a recorded decode step computes both."""
    if work.sampling is None or len(work.token_ids) > RECORDED_TOKENS:
        return work
    return structs.replace(work, proposed=tuple(work.token_ids[1:]))


def _position_works(works: Sequence[Work], ready: Sequence[_DraftRequest], position: int) -> list[Work]:
    """Returns the works of the recorded step of a draft position."""
    return [
        structs.replace(work, start=each.length - 1 + position, token_ids=[PENDING_TOKEN])
        for work, each in zip(works, ready, strict=False)
    ]


def _sampled_work(request: _DraftRequest, position: int, text: list[int] | None) -> Work:
    index = request.work.output_index + len(request.sampled) + position
    return structs.replace(request.work, output_index=index, tokens=text, proposed=(), propose=0)


def _text(request: _DraftRequest) -> list[int] | None:
    work = request.work
    assert work.sampling is not None and work.tokens is not None
    return [*work.tokens, *request.sampled] if work.sampling.looks_back else None
