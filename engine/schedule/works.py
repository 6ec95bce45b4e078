"""Plans the computation of each sequence in a step: next tokens of decodes, chunks of prompts, and draft tokens."""

from collections.abc import Sequence as Tokens
from typing import NamedTuple

from engine.plan import NO_PROPOSAL, PENDING_TOKEN, Proposal, Work
from engine.schedule.lifecycle import Lifecycle
from engine.schedule.prompt_turns import PromptTurns
from engine.schedule.readiness import Readiness
from engine.schedule.sequence import Sequence
from engine.schedule.speculation import Speculation


class Telling(NamedTuple):
    """What the works of an engine tell of their states."""

    at_handoff: bool = False  # the state of the last token of a prompt that is handed off
    pooled: bool = False  # the result of each whole text
    whole: bool = False  # … which is computed in one step


class Works:
    """Turns sequences that can be computed into works of a step."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        turns: PromptTurns,
        readiness: Readiness | None,
        speculation: Speculation | None,
        telling: Telling,
    ) -> None:
        self._lifecycle = lifecycle
        self._turns = turns
        self._readiness = readiness
        self._speculation = speculation
        self._telling = telling

    def may_be_sampled(self, sequence: Sequence) -> bool:
        """Returns whether a sequence's next token can be drawn; if not, starts preparing its grammar."""
        grammar = sequence.sampling.grammar
        if self._readiness is None or not grammar:
            return True
        return self._readiness.ready(sequence.id, grammar, sequence.tokens, sequence.prompt_tokens)

    def ready(self) -> tuple[list[Sequence], list[Sequence]]:
        """Returns the running sequences that can be computed in this step: decodes, and prompts with tokens left.

        A decoding sequence has several tokens to compute if its grammar has forced several at once.
        """
        decodes, prompts = [], []
        for sequence in self._lifecycle.running:
            length = sequence.length
            if length >= sequence.plan_length or sequence.forked:
                continue  # its last token is in flight, or it lacks a block
            if length > sequence.capacity and sequence.planned >= min(sequence.admitted_length, sequence.capacity):
                continue  # it lacks a block; a prompt may be longer than its windows
            if sequence.pending and (sequence.branches or sequence.sampling.grammar or self._may_draft(sequence)):
                continue  # branches, a grammar, or draft tokens need the token in flight first
            is_decode = length - sequence.planned == 1 or sequence.planned >= sequence.admitted_length
            if is_decode and not self._telling.whole:
                if self.may_be_sampled(sequence):
                    decodes.append(sequence)
            else:
                prompts.append(sequence)
        return decodes, prompts

    def decodes(self, decodes: list[Sequence], budget: int, context: int, step: int) -> tuple[list[Work], int]:
        """Plans one token of each sequence, and up to `budget` more tokens; returns the rest of the budget.

        `context`: tokens of the sequences that decoded last. This is a hot path: hundreds decode in a few milliseconds.
        """
        works: list[Work] = []
        speculation = self._speculation
        if speculation is not None and not (decodes and speculation.begin(len(decodes), context)):
            speculation = None
        now = speculation.step if speculation is not None else 0
        for sequence in decodes:
            count = sequence.length - sequence.planned
            drafts = NO_PROPOSAL
            whole = True
            if count > 1:
                whole = count <= 1 + budget
                count = min(count, 1 + budget)
                budget -= count - 1
            if speculation is not None and whole and not speculation.rests(sequence, now):
                drafts = speculation.draft(sequence, len(decodes), budget)
                budget -= len(drafts.tokens)
            works.append(self._work(sequence, count, step, drafts))
        return works, budget

    def _may_draft(self, sequence: Sequence) -> bool:
        return self._speculation is not None and self._speculation.serves(sequence)

    def chunks(self, prompts: list[Sequence], budget: int, now: float, step: int) -> list[Work]:
        """Plans chunks of `budget` tokens in all, of prompts in progress and of newly admitted prompts.

        Chunks are planned one by one: each may share KV that earlier chunks compute in this step.
        """
        works: list[Work] = []
        for sequence, most in self._turns.take(prompts, budget, now, step):
            if count := self._chunk(sequence, most):
                works.append(self._work(sequence, count, step))
        return works

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        """Returns the number of a prompt's tokens to compute next; the last token waits for the sequence's grammar."""
        left = sequence.left
        tokens = min(budget, sequence.capacity - sequence.planned)
        if self._telling.whole:
            return left if left <= tokens else 0
        return min(tokens, left if tokens < left or self.may_be_sampled(sequence) else left - 1)

    def _work(self, sequence: Sequence, count: int, step: int, drafts: Proposal = NO_PROPOSAL) -> Work:
        """Plans `count` tokens of a sequence, and draft tokens; samples at the last token and each draft token."""
        start, length, proposed = sequence.planned, sequence.length, tuple(drafts.tokens)
        end = start + count
        sampled = end == length
        samples: tuple[int, ...] = (sequence.key.sample,)
        if sequence.branches:
            samples += tuple(branch.key.sample for branch in sequence.branches)
        sampling, output_index = sequence.sampling, length - sequence.prompt_tokens
        token_ids: Tokens[int] = sequence.tokens[start:end] or [PENDING_TOKEN]
        if proposed:
            token_ids = [*sequence.tokens[start:end], *proposed]
        propose = 0
        if sampled and self._speculation is not None and self._speculation.in_engine:
            propose = self._speculation.wanted(sequence, len(proposed))
        state = b""
        if sequence.handed_state and start == sequence.handed_state_at:
            state, sequence.handed_state = sequence.handed_state, b""
        work = Work(
            sequence.id,  # by place: Python puts 16 arguments by name into a dict first, which takes 1 µs
            start,
            token_ids,
            sequence.blocks,
            sampling if sampled else None,
            samples=samples,
            output_index=output_index,
            tokens=sequence.tokens if sampled and (sequence.looks_back or propose) else None,
            prompt_tokens=sequence.prompt_tokens,
            banned=sequence.limits.stop_token_ids if output_index < sequence.limits.min_tokens else (),
            prompt_rows=sequence.prompt_rows(start, end) if sampling.prompt_logprobs is not None else None,
            adapter=sequence.prompt.adapter,
            proposed=proposed,
            parents=drafts.parents,
            propose=propose,
            state=state,
            returns_state=sampled and (self._telling.pooled or (sequence.hand_off and self._telling.at_handoff)),
        )
        sequence.planned = end + len(proposed)
        sequence.drafted = len(proposed)
        sequence.pending += sampled
        sequence.in_flight += 1
        if end >= sequence.register_at:
            self._lifecycle.register(sequence, min(end, len(sequence.tokens)), step)
        return work
