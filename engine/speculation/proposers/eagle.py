"""Proposes with a head that guesses hidden states (`eagle_head.py`), which has KV of its own over the whole text.

The head's KV is that of a layer behind the model's last: what is stored for the token at position t is made of that
token and of the state before it, f(t - 1). So a block's KV depends on its tokens and those before them alone, as that
of every layer does, and prefix cache, handoff, host tier and copies of blocks need to know nothing of it. A step stores
it for all its tokens (`follow`), beside the model's: of a chunk's first token by the state that the step before has
left (`kept_states.py`), that came with a handoff, or that the last token of a block had which was found in the cache
(`block_states.py`). Where that block was computed elsewhere, or long ago, nobody knows the state: one token of the text
has a key and a value of 0 then.

Proposing (`propose`) begins where the step's tokens are known: they go through the head with the states before them,
so that a step of nothing but decodes stores nothing itself. (While nobody asks for guesses, because they do not pay,
what is decoded has keys and values of 0.) The last of them, which no step has computed yet, gives a guess of its own
state, and so a guess of the next token, which goes through the head with that state, and so on. Guessed tokens are
drawn with the randomness of their own output index, as the model's will be. What these passes store is stored anew, by
true states, when the tokens come.
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
from engine.plan import PENDING_TOKEN, Proposal, StepPlan, StepResult, Work
from engine.speculation.proposers.block_states import BlockEnd, BlockStates
from engine.speculation.proposers.eagle_head import EagleHead
from engine.speculation.proposers.kept_states import KeptStates

STATES_BYTES = 32 << 20
"""Memory for the states of blocks' last tokens, at most: with 4,096 values of bf16 those of 65,536 tokens."""


@dataclass(frozen=True)
class _Followed:
    """Keeps the states of a step's rows until it is known which of its guesses were right."""

    step: int
    states: Tensor  # [tokens, hidden]
    works: dict[int, tuple[Work, int]]  # by index, those that ask for guesses: with blocks of their own, and first rows


class EagleProposer:
    """See `engine.speculation.proposers.model_proposer.ModelProposer`. The executor has it follow each step."""

    def __init__(
        self, head: EagleHead[Any], backend: Backend[Any, Any], pool: KVPool, attention: Attention[Any], most: int
    ) -> None:
        self._head = head
        self._backend = backend
        self._pool = pool
        self._attention = attention
        self._block = pool.spec.groups[0].block_tokens
        self._group = pool.spec.groups_of_layers()[-1]
        self._kept = KeptStates(2 * most, head.config.hidden_size, backend.device, backend.dtype)
        states = min(pool.counts[self._group], STATES_BYTES // (head.config.hidden_size * backend.dtype.itemsize))
        self._block_ends = BlockStates(max(1, states), head.config.hidden_size, backend.device, backend.dtype)
        self._followed: list[_Followed] = []

    def reads(self, plan: StepPlan) -> bool:
        """See `Follower`. Of a step of decodes nothing is stored unless one of them asks for guesses."""
        return any(_asks(work) or not _decodes(work) for work in plan.works)

    def skip(self, batch: Batch) -> None:
        fresh = batch.groups[self._group].fresh_blocks
        if len(fresh):
            self._pool.layers[-1][fresh] = 0

    def follow(self, plan: StepPlan, batch: Batch, states: Tensor, step: AttentionStep, stored: Stored) -> None:
        """Stores the head's KV of a step's tokens, whose normed states are `states` `[tokens, hidden]`."""
        begins = (np.cumsum(batch.query_lengths) - batch.query_lengths).tolist()
        asking = {
            index: (structs.replace(work, blocks=tuple(map(list, work.blocks))), begins[index])
            for index, work in enumerate(plan.works)
            if _asks(work)
        }
        going = [work for work, _ in asking.values()]
        if not all(map(_decodes, plan.works)) or not self._kept.have(going):
            self._store(plan, batch, states, step, stored)
        others = [index for index in range(len(plan.works)) if index not in asking]
        self._keep([plan.works[index] for index in others], [begins[index] for index in others], states)
        ends = [
            end
            for index in others
            for end in self._ends(plan.works[index], begins[index], len(plan.works[index].token_ids))
        ]
        self._block_ends.keep(ends, states)
        if asking:
            self._followed.append(_Followed(plan.step, states, asking))

    def _store(self, plan: StepPlan, batch: Batch, states: Tensor, step: AttentionStep, stored: Stored) -> None:
        first = batch.query_start
        before = torch.empty_like(states)
        before[1:] = states[:-1]
        before[first], are_known = self._kept.before(plan.works, self._of_block)
        known = torch.ones(len(states), dtype=torch.bool, device=states.device)
        known[first] = to_device(np.array(are_known), states.device)
        bare = replace(batch, logit_rows=first[:0], adapters=None)
        self._head.forward(bare, before, None if all(are_known) else known, step, stored)

    def propose(self, plan: StepPlan, result: StepResult, hidden: Tensor) -> dict[int, Proposal]:
        """See `ModelProposer`. Guesses end where a sequence's blocks do."""
        if not self._followed or self._followed[0].step != plan.step:
            return {}
        followed = self._followed.pop(0)
        came: list[Work] = []  # of each sequence the tokens that came, as a work
        asked: list[int] = []  # of those the indices
        rows: list[int] = []  # of the states before them
        kept: list[tuple[int, int, int, int]] = []  # of each sequence: its id, a position, that of stored KV, a row
        block_ends: list[BlockEnd] = []
        for index, (work, begin) in followed.works.items():
            tokens = result.tokens[index]
            if not tokens:
                continue
            own = len(work.token_ids) - len(work.proposed)
            first, row = work.start + own, begin + own - 1  # of the first token that came; of the state before it
            # tokens before which the states are known
            known = min(len(tokens), len(result.accepted.get(index, ())) + 1)
            most = min(work.propose, self._capacity(work) - (first + known - 1)) if known == len(tokens) else 0
            count = known if most > 0 else known - 1
            kept.append((work.sequence, first + known - 2, first + count - 1, row + known - 1))
            block_ends += self._ends(work, begin, own + known - 1)
            if count:
                came.append(_came(work, first, tokens[:count], most))
                asked.append(index)
                rows += range(row, row + count)
        if not kept:
            return {}
        sequences, positions, stored, ends = zip(*kept, strict=True)
        self._kept.keep(sequences, positions, stored, _rows(followed.states, ends))
        self._block_ends.keep(block_ends, followed.states)
        guesses = self._guesses(came, _rows(followed.states, rows)) if came else []
        return {index: Proposal(guess) for index, guess in zip(asked, guesses, strict=True) if guess}

    def _guesses(self, works: Sequence[Work], before: Tensor) -> list[list[int]]:
        """Stores KV of each work's tokens, before which the states are `before`, and guesses what follows them."""
        guesses: list[list[int]] = [[] for _ in works]
        members = [at for at, work in enumerate(works) if work.propose > 0]
        found: list[tuple[list[int], Tensor]] = []  # of each turn the works that were guessed for, and their tokens
        states, sampled = self._pass(works, before, None)
        while sampled is not None:
            found.append((members, sampled.tokens))
            going = [at for at, member in enumerate(members) if works[member].propose > len(found)]
            if not going:
                break
            if len(going) < len(members):
                states, members = _rows(states, going), [members[at] for at in going]
            states, sampled = self._pass([_turn(works[member], len(found)) for member in members], states, sampled)
        drawn = torch.cat([tokens for _, tokens in found]).tolist() if found else []
        for member, token in zip([member for members, _ in found for member in members], drawn, strict=True):
            guesses[member].append(token)
        return guesses

    def _pass(self, works: Sequence[Work], before: Tensor, drawn: Sampled | None) -> tuple[Tensor, Sampled | None]:
        batch = build_batch(StepPlan(0, list(works)), self._block, self._backend.device, drawn)
        for group, tables in enumerate(batch.groups):
            self._pool.enter(group, tables.fresh_blocks)
        states = self._head.forward(batch, before, None, self._attention.begin(batch), _nobody_reads)
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
        """Yields the blocks that the first so many of a work's tokens fill; the first one's row is `begin`."""
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


def _asks(work: Work) -> bool:
    """Tells whether a work has guesses, or asks for some; one of several samples gets none."""
    return bool(work.propose or work.proposed) and len(work.samples) == 1


def _decodes(work: Work) -> bool:
    """Tells whether a work goes on from the token that the step before gave, on this worker."""
    return work.output_index > 0 and len(work.token_ids) == 1 + len(work.proposed) and not work.tells_state


def _came(work: Work, start: int, tokens: list[int], most: int) -> Work:
    """Returns the work of tokens that came of one, behind which up to `most` are guessed."""
    return structs.replace(
        work,
        start=start,
        token_ids=tokens,
        sampling=work.sampling if most > 0 else None,
        output_index=work.output_index + len(tokens),
        prompt_rows=None,
        proposed=(),
        propose=most,
    )


def _turn(work: Work, count: int) -> Work:
    """Returns the work of the token that was guessed `count` guesses behind a work's own."""
    start = work.start + len(work.token_ids) - 1 + count
    return structs.replace(work, start=start, token_ids=[PENDING_TOKEN], output_index=work.output_index + count)


def _rows(states: Tensor, rows: Sequence[int]) -> Tensor:
    found: Tensor = states[to_device(np.array(rows, dtype=np.int64), states.device)]
    return found


def _nobody_reads(layer: int) -> None:
    """Tells nobody that KV of guesses is stored: it does not leave this worker before it is stored anew."""
