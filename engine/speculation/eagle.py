"""Proposes with a head that guesses hidden states (`eagle_head.py`), which has KV of its own over the whole text.

The head's KV is that of a layer behind the model's last: what is stored for the token at position t is made of that
token and of the state before it, f(t - 1). So a block's KV depends on its tokens and those before them alone, as that
of every layer does, and prefix cache, handoff, host tier and copies of blocks need to know nothing of it. A step stores
it for all its tokens (`follow`), beside the model's: of a chunk's first token by the state that the step before has
left (`kept_states.py`), or that came with a handoff. It is not known behind what was found in the cache, where nobody
has computed the state: one token of the text has a key and a value of 0 then.

Proposing (`propose`) begins where the step's tokens are known: the last one, which no step has computed yet, goes
through the head with the state before it. That gives a guess of its own state, and so a guess of the next token, which
goes through the head with that state, and so on. Guessed tokens are drawn with the randomness of their own output
index, as the model's will be. What these passes store is stored anew, by true states, when the tokens come.
"""

from collections.abc import Sequence
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
from engine.plan import PENDING, Plan, StepResult, Work
from engine.speculation.eagle_head import EagleHead
from engine.speculation.kept_states import KeptStates


@dataclass(frozen=True)
class _Followed:
    """Keeps the states of a step's rows until it is known which of its guesses were right."""

    step: int
    states: Tensor  # [tokens, hidden]
    works: dict[int, tuple[Work, int]]  # by index, those that ask for guesses: with blocks of their own, and first rows


class EagleProposer:
    """See `engine.speculation.proposer.ModelProposer`. The executor has it follow each step."""

    def __init__(
        self, head: EagleHead[Any], backend: Backend[Any, Any], pool: KVPool, attention: Attention[Any], most: int
    ) -> None:
        """Guesses by KV in `pool`, over which `attention` attends; no step has more than `most` sequences."""
        self._head = head
        self._backend = backend
        self._pool = pool
        self._attention = attention
        self._block = pool.spec.groups[0].block_tokens
        self._kept = KeptStates(2 * most, head.config.hidden_size, backend.device, backend.dtype)
        self._followed: list[_Followed] = []

    def follow(self, plan: Plan, batch: Batch, states: Tensor, step: AttentionStep, stored: Stored) -> None:
        """Stores the head's KV of a step's tokens, whose normed states are `states` `[tokens, hidden]`."""
        first = batch.query_start
        before = torch.empty_like(states)
        before[1:] = states[:-1]
        before[first], are_known = self._kept.before(plan.works)
        known = torch.ones(len(states), dtype=torch.bool, device=states.device)
        known[first] = to_device(np.array(are_known), states.device)
        bare = replace(batch, logit_rows=first[:0], adapters=None)
        self._head.forward(bare, before, known, step, stored)
        begins = (np.cumsum(batch.query_lengths) - batch.query_lengths).tolist()
        asking = {
            index: (structs.replace(work, blocks=tuple(map(list, work.blocks))), begins[index])
            for index, work in enumerate(plan.works)
            if (work.propose or work.proposed) and len(work.samples) == 1
        }
        others = [index for index in range(len(plan.works)) if index not in asking]
        self._keep([plan.works[index] for index in others], [begins[index] for index in others], states)
        if asking:
            self._followed.append(_Followed(plan.step, states, asking))

    def propose(self, plan: Plan, result: StepResult, hidden: Tensor) -> dict[int, list[int]]:
        """See `ModelProposer`. Guesses end where a sequence's blocks do."""
        if not self._followed or self._followed[0].step != plan.step:
            return {}
        followed = self._followed.pop(0)
        ends: list[Work] = []  # of each sequence that goes on, its last token as a work
        rows, asked = [], []
        for index, (work, begin) in followed.works.items():
            tokens = result.tokens[index]
            if not tokens:
                continue
            own = len(work.token_ids) - len(work.proposed)
            row = own + min(len(tokens), len(work.proposed) + 1) - 2  # that the last token but one was computed in
            position = work.start + own + len(tokens) - 1
            if position != work.start + row + 1:
                continue  # its grammar gave tokens that no step has computed
            ends.append(
                structs.replace(
                    work,
                    start=position,
                    token_ids=[tokens[-1]],
                    output_index=work.output_index + len(tokens),
                    prompt_rows=None,
                    proposed=(),
                    propose=min(work.propose, self._capacity(work) - position),
                )
            )
            rows.append(begin + row)
            asked.append(index)
        if not ends:
            return {}
        states = followed.states[to_device(np.array(rows, dtype=np.int64), followed.states.device)]
        self._kept.keep([work.sequence for work in ends], [work.start - 1 for work in ends], states)
        guesses = self._guesses(ends, states)
        return {index: guess for index, guess in zip(asked, guesses, strict=True) if guess}

    def _guesses(self, works: Sequence[Work], states: Tensor) -> list[list[int]]:
        """Guesses what follows each work's token, of whose predecessors `states` `[works, hidden]` are."""
        found: list[Tensor] = []
        members = list(range(len(works)))  # those that have a guess in the newest of `found`
        places: list[list[int]] = []
        before: Sampled | None = None
        while True:
            going = [at for at, member in enumerate(members) if works[member].propose > len(found)]
            if not going:
                break
            if len(going) < len(members):
                states = states[to_device(np.array(going, dtype=np.int64), states.device)]
            members = [members[at] for at in going]
            turn = [_turn(works[member], len(found)) for member in members]
            states, before = self._pass(turn, states, before)
            found.append(before.tokens)
            places.append(members)
        guesses: list[list[int]] = [[] for _ in works]
        drawn = torch.cat(found).tolist() if found else []
        for member, token in zip([member for turn_of in places for member in turn_of], drawn, strict=True):
            guesses[member].append(token)
        return guesses

    def _pass(self, works: list[Work], states: Tensor, before: Sampled | None) -> tuple[Tensor, Sampled]:
        """Runs the head on one token of each work; returns the states that it guesses, and the tokens drawn there."""
        batch = build_batch(Plan(0, works), self._block, self._backend.device, before)
        for group, tables in enumerate(batch.groups):
            self._pool.enter(group, tables.fresh_blocks)
        known = torch.ones(len(works), dtype=torch.bool, device=states.device)
        states = self._head.forward(batch, states, known, self._attention.begin(batch), _nobody_reads)
        draws = [Draw(work.sampling, work.samples, work.output_index) for work in works if work.sampling is not None]
        tokens, _ = self._backend.sampler.sample(self._head.logits(states), draws)
        return states, Sampled(tokens, works)

    def _keep(self, works: Sequence[Work], begins: Sequence[int], states: Tensor) -> None:
        """Keeps the states of the last tokens of works of which all tokens are true."""
        ends: Ints = np.array(
            [begin + len(work.token_ids) - 1 for work, begin in zip(works, begins, strict=True)], dtype=np.int64
        )
        positions = [work.start + len(work.token_ids) - 1 for work in works]
        self._kept.keep([work.sequence for work in works], positions, states[to_device(ends, states.device)])

    def _capacity(self, work: Work) -> int:
        """Returns how many tokens a work's blocks hold."""
        return min(map(len, work.blocks)) * self._block


def _turn(work: Work, count: int) -> Work:
    """Returns the work of the token that was guessed `count` guesses behind a work's own."""
    if not count:
        return work
    return structs.replace(work, start=work.start + count, token_ids=[PENDING], output_index=work.output_index + count)


def _nobody_reads(layer: int) -> None:
    """Tells nobody that KV of guesses is stored: it does not leave this worker before it is stored anew."""
