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
from engine.speculation.proposers.held import HeldKV
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
    own: int  # first own block; own blocks take KV of draft tokens beyond the target's block table
    steps: DecodeSteps | None = None  # runs the draft's steps; None: they are not recorded


class _Asked(NamedTuple):
    """The tokens without KV of a sequence, and the number of draft tokens wanted."""

    number: int  # of the work in the plan
    work: Work
    came: list[int]  # tokens that the step has sampled
    table: list[int]
    length: int  # of the text
    held: int  # leading tokens with KV
    missing: int  # further tokens, computed now
    most: int  # draft tokens; 0: more tokens lack KV than can be computed now

    def tokens(self) -> list[int]:
        known = self.work.tokens
        assert known is not None
        came = self.came[max(0, self.held - len(known)) :]
        return [*known[self.held :], *came][: self.missing]


def own_blocks(most: int, block_tokens: int) -> int:
    """Returns the number of blocks that a draft model needs beside the target's, for up to `most` draft tokens."""
    return MAX_SEQUENCES_PER_STEP * blocks_for(most, block_tokens)


class DraftProposer:
    """Drafts with a small model that has its own KV."""

    def __init__(self, draft: DraftModel, vocab: int, most: int, chunk: int) -> None:
        """Drafts up to `most` tokens of the target's `vocab` per sequence; computes up to `chunk` tokens in a step."""
        self._draft = draft
        self._vocab = vocab
        self._most = most
        self._chunk = chunk
        self._block_size = draft.pool.spec.groups[0].block_tokens
        self._groups = len(draft.pool.spec.groups)
        self._own = blocks_for(most, self._block_size)  # own blocks of the draft for one sequence
        self._held = HeldKV(self._block_size)
        self._first_tables = block_tables(self._groups)
        self._later_tables = BlockTables(0)

    def propose(self, plan: StepPlan, result: StepResult, hidden: Tensor) -> dict[int, DraftedTokens]:
        asked = self._asked(plan, result)
        if not asked:
            return {}
        found = self._guessed(asked)
        ready = [each for each in asked if each.most]
        guesses = {each.number: drafted for each, drafted in zip(ready, found, strict=True)}
        for each in asked:
            room = len(each.table) * self._block_size  # KV in the draft's own blocks is lost
            end = min(each.held + each.missing, room)
            drafted = guesses.get(each.number)
            ahead = drafted.first(min(len(drafted) - 1, room - end)) if drafted is not None else ()
            self._held.wrote(each.work.sequence, each.table, each.held, end, ahead)
        self._held.trim(len(plan.works))
        return guesses

    def _asked(self, plan: StepPlan, result: StepResult) -> list[_Asked]:
        """Returns the sequences to compute now: first sequences that get draft tokens, the most first; then chunks."""
        found = []
        for index, (work, came) in enumerate(zip(plan.works, result.tokens, strict=True)):
            if work.propose and came and len(work.samples) == 1:
                assert work.tokens is not None, "draft tokens are requested without the text's tokens"
                table, length = work.blocks[self._draft.group], len(work.tokens) + len(came)
                most = min(work.propose, self._most, self._draft.config.max_model_len - length)
                if most > 0:
                    held = self._held.held(work.sequence, work.tokens, came, table)
                    found.append(_Asked(index, work, came, table, length, held, length - held, most))
        found.sort(key=lambda each: each.missing)
        taken, left = [], self._chunk
        for each in found[:MAX_SEQUENCES_PER_STEP]:
            if each.missing > left:
                # Tokens beyond the table's blocks are computed with the draft tokens, when there is room for all.
                missing = min(left, len(each.table) * self._block_size - each.held)
                each = each._replace(missing=missing, most=0)
            if each.missing <= 0 or not self._knows(each):
                continue
            left -= each.missing
            taken.append(each)
        return sorted(taken, key=lambda each: (-each.most, each.missing))

    def _knows(self, asked: _Asked) -> bool:
        vocab = self._draft.config.vocab_size
        return vocab >= self._vocab or max(asked.tokens()) < vocab

    def _guessed(self, asked: list[_Asked]) -> list[DraftedTokens]:
        """Computes the missing tokens, then drafts position by position; returns draft tokens of the first works."""
        works = [self._work(row, each) for row, each in enumerate(asked)]
        states = self._first(works)
        ready = [each for each in asked if each.most]
        if not ready:
            return []
        turns = self._turns(works[: len(ready)], ready)
        texts = [_text(each) for each in ready]
        columns: list[Tensor] = []
        for place in range(ready[0].most):
            if place:
                states = turns(place, columns[-1])
            columns.append(self._drawn(self._draft.model.logits(states), ready, place, texts))
        drafts = DeviceDrafts(torch.cat(columns))
        begins = np.cumsum([0, *map(len, columns)]).tolist()
        return [DraftedTokens(drafts, [row + begin for begin in begins[: each.most]]) for row, each in enumerate(ready)]

    def _work(self, row: int, asked: _Asked) -> Work:
        needed = blocks_for(asked.length + asked.most - 1, self._block_size)
        table = asked.table[:needed]  # the target's texts may be longer
        if asked.most:
            own = self._draft.own + row * self._own
            table += range(own, own + needed - len(table))
        return Work(
            asked.work.sequence,
            asked.held,
            asked.tokens(),
            (table,) * self._groups,
            asked.work.sampling if asked.most else None,
        )

    def _first(self, works: list[Work]) -> Tensor:
        """Computes the missing tokens; returns the states `[works that get draft tokens, hidden]` of the last ones."""
        draft = self._draft
        if draft.steps is not None:
            recorded = [_as_decode(work) for work in works]
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
        return draft.model.forward(batch, draft.attention.begin(batch), _stored)

    def _turns(self, works: list[Work], ready: list[_Asked]) -> Callable[[int, Tensor], Tensor]:
        """Returns the function that computes the states of a later position from the previous one's draft tokens."""
        steps = self._draft.steps
        counts = [sum(each.most > place for each in ready) for place in range(ready[0].most)]
        if steps is None or not steps.serves(StepPlan(0, _turn(works, ready, 1))):
            later = self._later(works, ready)
            return lambda place, before: self._forward(later.batch(place, before))
        return lambda place, before: steps.run(
            _turn(works[: counts[place]], ready, place), Sampled(before, works[: len(before)])
        )

    def _later(self, works: list[Work], ready: list[_Asked]) -> "_Later":
        """Prepares all later steps at once: their positions are known before their tokens."""
        size, device = self._block_size, self._draft.backend.device
        lengths = np.array([each.length for each in ready])
        most = [each.most for each in ready]
        counts = [blocks_for(each.length + each.most - 1, size) for each in ready]
        tables = self._later_tables.of(works, counts)
        positions = lengths + np.arange(-1, most[0] - 1)[:, None]  # [places, sequences]
        places = np.minimum(positions // size, tables.shape[1] - 1)  # shorter drafts: clamped, unused
        slots = tables[np.arange(len(ready)), places] * size + positions % size
        on_device = to_device(np.concatenate((positions, slots, tables.T, np.arange(len(ready))[None])), device)
        return _Later(
            [sum(each > place for each in most) for place in range(most[0])],
            on_device[: most[0]],
            on_device[most[0] : 2 * most[0]],
            on_device[2 * most[0] : -1].T.reshape(-1).view(len(ready), -1),  # indices within one block are neighbours
            on_device[-1],
            lengths,
            self._groups,
        )

    def _drawn(self, logits: Tensor, ready: list[_Asked], place: int, texts: list[list[int] | None]) -> Tensor:
        """Draws the draft tokens of a position, int64 `[rows]`, and appends them to `texts` (None: not needed)."""
        if logits.shape[1] > self._vocab:  # the target has no such tokens
            logits = logits[:, : self._vocab].contiguous()
        rows = ready[: len(logits)]
        works = [_drawn_from(each, place, text) for each, text in zip(rows, texts, strict=False)]
        if any(map(is_adjusted, works)):
            logits = self._draft.backend.adjuster.adjust(logits, works, None, None)
        draws = [Draw(work.sampling, work.samples, work.output_index) for work in works if work.sampling is not None]
        tokens, _ = self._draft.backend.sampler.sample(logits, draws)
        if any(text is not None for text in texts):
            for text, token in zip(texts, tokens.tolist(), strict=False):
                if text is not None:
                    text.append(token)
        return tokens


class _Later(NamedTuple):
    """Positions and slots of the steps after the first; each step has one token of each sequence."""

    counts: list[int]  # by position, the leading sequences that get a draft token there
    positions: Tensor  # int64 [places, sequences]
    slots: Tensor  # int64 [places, sequences]
    tables: Tensor  # int64 [sequences, blocks]
    every: Tensor  # int64 [sequences] 0, 1, …
    lengths: Ints  # [sequences], text without draft tokens
    groups: int

    def batch(self, place: int, before: Tensor) -> Batch:
        """Makes the step that samples position `place`; `before` are the draft tokens of the previous position."""
        count = self.counts[place]
        every = self.every[:count]
        where = GroupTables(self.slots[place, :count], self.tables[:count], every[:0])
        return Batch(
            token_ids=before[:count],
            positions=self.positions[place, :count],
            groups=(where,) * self.groups,
            query_start=every,
            logit_rows=every,
            query_lengths=np.ones(count, np.int64),
            kv_lengths=self.lengths[:count] + place,
        )


def _as_decode(work: Work) -> Work:
    """Lets a recorded decode step take a second token, as one that it verifies."""
    if work.sampling is None or len(work.token_ids) > RECORDED_TOKENS:
        return work
    return structs.replace(work, proposed=tuple(work.token_ids[1:]))


def _turn(works: Sequence[Work], ready: Sequence[_Asked], place: int) -> list[Work]:
    """Makes the recorded step that samples position `place`."""
    return [
        structs.replace(work, start=each.length - 1 + place, token_ids=[PENDING_TOKEN])
        for work, each in zip(works, ready, strict=False)
    ]


def _drawn_from(asked: _Asked, place: int, text: list[int] | None) -> Work:
    index = asked.work.output_index + len(asked.came) + place
    return structs.replace(asked.work, output_index=index, tokens=text, proposed=(), propose=0)


def _text(asked: _Asked) -> list[int] | None:
    work = asked.work
    assert work.sampling is not None and work.tokens is not None
    return [*work.tokens, *asked.came] if work.sampling.looks_back else None


def _stored(layer: int) -> None:
    """Ignores that a layer's KV is stored: nothing waits for it."""
