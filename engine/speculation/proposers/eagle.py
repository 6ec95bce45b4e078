"""Proposes with a head that predicts hidden states (`eagle_head.py`) and has its own KV over the whole text.

The head's KV is that of an additional layer. The entry for position t depends on token t and on the previous state f(t
- 1). A block's KV therefore depends only on its own and earlier tokens, as in every layer, so prefix cache, handoff,
host tier and block copies need no special case. A step stores the head's KV of all its tokens (`store`) beside the
model's. For the first token of a chunk, f(t - 1) comes from the previous step (`sequence_states.py`), a handoff, or
the cached block before it (`block_states.py`). If that block was computed on another worker or too long ago, the
state is unknown, and this one token has a key and a value of 0.

Proposing (`propose`) begins when the step's tokens are known. They go through the head with the states before them, so
a step of decodes only need not store KV itself. (While no work wants draft tokens, because they do not pay, decoded
tokens have keys and values of 0.) From the last token, which no step has computed yet, the head predicts the next state
and thus the next token; that token goes through the head with the predicted state, and so on. Draft tokens are drawn
with the randomness of their own output index, as the model's tokens will be. The KV that these passes store is
overwritten with KV of true states once the tokens are computed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from engine.backends.base import Backend
from engine.backends.sampler import Draw
from engine.device import to_device
from engine.kv.pool import KVPool
from engine.model.attention import Attention, AttentionStep
from engine.model.batch import Batch, Ints, Sampled, build_batch
from engine.model.model import Stored
from engine.plan import PENDING_TOKEN, StepPlan, StepResult, Work
from engine.speculation.proposers.block_states import BlockEnd, BlockStates
from engine.speculation.proposers.eagle_head import EagleHead
from engine.speculation.proposers.pending_drafts import DeviceDrafts, DraftedTokens
from engine.speculation.proposers.sequence_states import SequenceStates

STATES_BYTES = 32 << 20
"""Maximum memory for the states of blocks' last tokens, in bytes: 4,096 states of 4,096 bf16 values."""


@dataclass(frozen=True)
class _StepStates:
    """The hidden states of a step, kept until the accepted draft tokens are known."""

    step: int
    states: Tensor  # [tokens, hidden]
    works: dict[int, tuple[Work, int]]  # works that want draft tokens, and their first rows, by index in the plan


class EagleProposer:
    """Implements `KVProposer`."""

    def __init__(
        self,
        head: EagleHead[Any],
        backend: Backend[Any, Any],
        pool: KVPool,
        attention: Attention[Any],
        max_sequences: int,
    ) -> None:
        self._head = head
        self._backend = backend
        self._pool = pool
        self._attention = attention
        self._block = pool.spec.groups[0].block_tokens
        self._group = pool.spec.groups_of_layers()[-1]
        self._kept = SequenceStates(2 * max_sequences, head.config.hidden_size, backend.device, backend.dtype)
        states = min(pool.counts[self._group], STATES_BYTES // (head.config.hidden_size * backend.dtype.itemsize))
        self._block_ends = BlockStates(max(1, states), head.config.hidden_size, backend.device, backend.dtype)
        self._pending: list[_StepStates] = []

    def reads(self, plan: StepPlan) -> bool:
        """Returns False for a step of decodes only in which no work wants draft tokens."""
        return any(_wants_drafts(work) or not _decodes(work) for work in plan.works)

    def stores(self, plan: StepPlan) -> bool:
        remaining = [work for work in plan.works if _wants_drafts(work)]
        return self.reads(plan) and not (all(map(_decodes, plan.works)) and self._kept.have(remaining))

    def skip(self, plan: StepPlan) -> None:
        fresh: list[int] = []
        for work in plan.works:
            first, end = (-(-position // self._block) for position in (work.start, work.start + len(work.token_ids)))
            fresh += work.blocks[self._group][first:end]
        if fresh:
            self._pool.layers[-1][to_device(np.array(fresh), self._backend.device)] = 0

    def note(self, plan: StepPlan, states: Tensor) -> None:
        lengths = [len(work.token_ids) for work in plan.works]
        begins = (np.cumsum(lengths) - lengths).tolist()
        asking = {
            index: (structs.replace(work, blocks=tuple(map(list, work.blocks))), begins[index])
            for index, work in enumerate(plan.works)
            if _wants_drafts(work)
        }
        others = [index for index in range(len(plan.works)) if index not in asking]
        self._keep([plan.works[index] for index in others], [begins[index] for index in others], states)
        ends = [
            end
            for index in others
            for end in self._ends(plan.works[index], begins[index], len(plan.works[index].token_ids))
        ]
        self._block_ends.keep(ends, states)
        if asking:
            self._pending.append(_StepStates(plan.step, states, asking))

    def store(self, plan: StepPlan, batch: Batch, states: Tensor, step: AttentionStep, stored: Stored) -> None:
        first = batch.query_start
        before = torch.empty_like(states)
        before[1:] = states[:-1]
        before[first], are_known = self._kept.before(plan.works, self._of_block)
        known = torch.ones(len(states), dtype=torch.bool, device=states.device)
        known[first] = to_device(np.array(are_known), states.device)
        bare = replace(batch, logit_rows=first[:0], adapters=None)
        self._head.forward(bare, before, None if all(are_known) else known, step, stored)

    def propose(self, plan: StepPlan, result: StepResult, hidden: Tensor) -> dict[int, DraftedTokens]:
        """Drafts at most up to the end of each sequence's blocks."""
        if not self._pending or self._pending[0].step != plan.step:
            return {}
        followed = self._pending.pop(0)
        sampled: list[Work] = []  # by sequence, the sampled tokens as a work of the head
        indices: list[int] = []  # of these works in the plan
        rows: list[int] = []  # rows of the states before them
        kept: list[tuple[int, int, int, int]] = []  # by sequence: id, position of state, position of stored KV, row
        block_ends: list[BlockEnd] = []
        for index, (work, begin) in followed.works.items():
            tokens = result.tokens[index]
            if not tokens:
                continue
            own = len(work.token_ids) - len(work.proposed)
            first, row = work.start + own, begin + own - 1  # first sampled token; row of the state before it
            # number of sampled tokens with a known state before them
            known = min(len(tokens), len(result.accepted.get(index, ())) + 1)
            max_drafts = min(work.propose, self._capacity(work) - (first + known - 1)) if known == len(tokens) else 0
            count = known if max_drafts > 0 else known - 1
            kept.append((work.sequence, first + known - 2, first + count - 1, row + known - 1))
            block_ends += self._ends(work, begin, own + known - 1)
            if count:
                sampled.append(_sampled_work(work, first, tokens[:count], max_drafts))
                indices.append(index)
                rows += range(row, row + count)
        if not kept:
            return {}
        sequences, positions, stored, ends = zip(*kept, strict=True)
        self._kept.keep(sequences, positions, stored, _rows(followed.states, ends))
        self._block_ends.keep(block_ends, followed.states)
        drafts = self._draft_tokens(sampled, _rows(followed.states, rows)) if sampled else []
        return {index: drafted for index, drafted in zip(indices, drafts, strict=True) if drafted is not None}

    def _draft_tokens(self, works: Sequence[Work], before: Tensor) -> list[DraftedTokens | None]:
        members = [at for at, work in enumerate(works) if work.propose > 0]
        found: list[tuple[list[int], Tensor]] = []  # by pass: the works, and their draft tokens
        states, sampled = self._pass(works, before, None)
        while sampled is not None:
            found.append((members, sampled.tokens))
            remaining = [at for at, member in enumerate(members) if works[member].propose > len(found)]
            if not remaining:
                break
            if len(remaining) < len(members):
                states, members = _rows(states, remaining), [members[at] for at in remaining]
            states, sampled = self._pass([_next_pass(works[member], len(found)) for member in members], states, sampled)
        if not found:
            return [None for _ in works]
        drafts = DeviceDrafts(torch.cat([tokens for _, tokens in found]))
        indices: list[list[int]] = [[] for _ in works]
        for position, member in enumerate(member for members, _ in found for member in members):
            indices[member].append(position)
        return [DraftedTokens(drafts, own) if own else None for own in indices]

    def _pass(self, works: Sequence[Work], before: Tensor, drawn: Sampled | None) -> tuple[Tensor, Sampled | None]:
        batch = build_batch(StepPlan(0, list(works)), self._block, self._backend.device, drawn)
        for group, tables in enumerate(batch.groups):
            self._pool.enter(group, tables.fresh_blocks)
        attention = self._attention.begin(batch)
        # No handoff waits for the KV of draft tokens: it is overwritten.
        states = self._head.forward(batch, before, None, attention, lambda layer: None)
        sampled = [work for work in works if work.sampling is not None]
        if not sampled:
            return states, None
        draws = [Draw(work.sampling, work.samples, work.output_index) for work in sampled if work.sampling is not None]
        tokens, _ = self._backend.sampler.sample(self._head.logits(states), draws)
        return states, Sampled(tokens, sampled)

    def _keep(self, works: Sequence[Work], begins: Sequence[int], states: Tensor) -> None:
        ends: Ints = np.array(
            [begin + len(work.token_ids) - 1 for work, begin in zip(works, begins, strict=True)], dtype=np.int64
        )
        positions = [work.start + len(work.token_ids) - 1 for work in works]
        sequences = [work.sequence for work in works]
        self._kept.keep(sequences, positions, positions, states[to_device(ends, states.device)])

    def _ends(self, work: Work, begin: int, tokens: int) -> Iterator[BlockEnd]:
        table, size = work.blocks[self._group], self._block
        for block in range(work.start // size, (work.start + tokens) // size):
            position = (block + 1) * size - 1
            yield BlockEnd(table[block], position, begin + position - work.start)

    def _of_block(self, work: Work) -> Tensor | None:
        if not work.start or work.start % self._block:
            return None
        block = work.blocks[self._group][work.start // self._block - 1]
        return self._block_ends.find(block, work.start - 1)

    def _capacity(self, work: Work) -> int:
        return min(map(len, work.blocks)) * self._block


def _wants_drafts(work: Work) -> bool:
    return bool(work.propose or work.proposed) and len(work.samples) == 1


def _decodes(work: Work) -> bool:
    """Returns whether a work continues from the token sampled by this worker's previous step."""
    return work.output_index > 0 and len(work.token_ids) == 1 + len(work.proposed) and not work.returns_state


def _sampled_work(work: Work, start: int, tokens: list[int], max_drafts: int) -> Work:
    return structs.replace(
        work,
        start=start,
        token_ids=tokens,
        sampling=work.sampling if max_drafts > 0 else None,
        output_index=work.output_index + len(tokens),
        prompt_rows=None,
        proposed=(),
        propose=max_drafts,
    )


def _next_pass(work: Work, count: int) -> Work:
    start = work.start + len(work.token_ids) - 1 + count
    return structs.replace(work, start=start, token_ids=[PENDING_TOKEN], output_index=work.output_index + count)


def _rows(states: Tensor, rows: Sequence[int]) -> Tensor:
    found: Tensor = states[to_device(np.array(rows, dtype=np.int64), states.device)]
    return found
