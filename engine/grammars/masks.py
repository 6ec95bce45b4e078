"""Computes grammar masks on a separate thread, while the engine's thread runs the step's forward pass."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from queue import SimpleQueue

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask_par
from numpy.typing import NDArray

from checkpoints.grammars import GrammarError, refuse_error
from contracts.errors import ModelError
from engine.constraints import Masks
from engine.grammars.preparation import GRAMMAR_STACK_BYTES, Preparation
from engine.plan import GrammarRefusal, StepPlan, Work
from engine.speculation.verify.verification import parents_of, row_count

MASK_TIMEOUT_S = 10.0  # then the step's sequences with grammars fail, and the others go on
log = logging.getLogger("baton.worker")


@dataclass
class _Step:
    """What a step's grammars allow; written by the mask thread, which then sets `done`."""

    works: dict[int, Work]  # sampled under a grammar, by index in the plan
    rows: dict[int, int]  # first row of logits of each work; rows of its draft tokens follow
    done: threading.Event = field(default_factory=threading.Event)
    forced: dict[int, list[int]] = field(default_factory=dict)  # forced tokens, which replace the sampled tokens
    failed: dict[int, GrammarRefusal] = field(default_factory=dict)
    masks: Masks | None = None  # of the works that are neither forced nor failed

    def refuse(self, why: str) -> None:
        self.failed, self.forced, self.masks = dict.fromkeys(self.works, GrammarRefusal(why, by_worker=True)), {}, None


class _Worker:
    """The mask thread. If it hangs, it is abandoned."""

    def __init__(self, preparation: Preparation, vocabulary: int, threads: int) -> None:
        self._preparation = preparation
        self._words = -(-vocabulary // 32)
        self._threads = threads
        self._steps: SimpleQueue[_Step] = SimpleQueue()
        before = threading.stack_size(GRAMMAR_STACK_BYTES)
        try:
            threading.Thread(target=self._run, name="grammar masks", daemon=True).start()
        finally:
            threading.stack_size(before)

    def post(self, step: _Step) -> None:
        self._steps.put(step)

    def _run(self) -> None:
        executor = LLExecutor(self._threads)
        while True:
            step = self._steps.get()
            try:
                self._compute(executor, step)
            except BaseException as error:  # all sequences share this thread, so it drops half-done state and goes on
                log.error(
                    "the masks of grammars could not be computed: %s", type(error).__name__
                )  # the message might quote texts
                step.refuse(f"what it allows could not be computed ({type(error).__name__})")
                for work in step.works.values():
                    self._preparation.forget(work.sequence)
            step.done.set()

    def _compute(self, executor: LLExecutor, step: _Step) -> None:
        matchers: list[tuple[int, int, LLMatcher]] = []  # of works, of rows
        for index, work in step.works.items():
            try:
                follower = self._preparation.follower(work)
                if _may_be_forced(work) and (tokens := follower.forced([])):
                    step.forced[index] = tokens
                else:
                    first = step.rows[index]
                    matchers += [(index, first + row, each) for row, each in _along(follower.matcher, work).items()]
            except GrammarError as error:
                step.failed[index] = GrammarRefusal(str(error))
            except ModelError as error:
                step.failed[index] = GrammarRefusal(str(error), by_worker=True)
        bits: NDArray[np.int32] = np.zeros((len(matchers), self._words), np.int32)
        if matchers:
            fill_next_token_bitmask_par(executor, [(matcher, at) for at, (*_, matcher) in enumerate(matchers)], bits)
        for index, row, matcher in matchers:
            if row > step.rows[index]:
                continue  # no token may follow that draft token; if it is accepted, the next step reports it
            try:
                refuse_error(matcher)
            except GrammarError as error:
                step.failed[index] = GrammarRefusal(str(error))
        if matchers:
            step.masks = Masks([row for _, row, _ in matchers], bits)
        self._preparation.trim(2 * len(step.works))  # with two steps in flight, sequences alternate between them


class GrammarMasks:
    """Constrains the sequences of one engine to their grammars."""

    def __init__(self, preparation: Preparation, vocabulary: int, threads: int) -> None:
        """`vocabulary` is the number of token ids; `threads` compute the masks of one step."""
        self.preparation = preparation
        self._make = partial(_Worker, preparation, vocabulary, threads)
        self._worker = self._make()
        self._steps: dict[int, _Step] = {}  # begun and not settled, by step number
        self._newest: _Step | None = None  # None: the newest step has no grammars

    def begin(self, plan: StepPlan) -> None:
        """Starts to compute the masks of a step."""
        sampled = [(index, work) for index, work in enumerate(plan.works) if work.sampling is not None]
        works = {index: work for index, work in sampled if work.sampling is not None and work.sampling.grammar}
        self._newest = None
        if works:
            firsts = accumulate((row_count(work) for _, work in sampled), initial=0)
            rows = {index: first for first, (index, _) in zip(firsts, sampled, strict=False)}
            self._newest = self._steps[plan.step] = _Step(works, rows)
            self._worker.post(self._newest)

    def masks(self, works: Sequence[Work]) -> Masks | None:
        """Returns the masks of the step that has begun, or None. Waits up to `MASK_TIMEOUT_S`."""
        step = self._newest
        if step is None:
            return None
        if not step.done.wait(MASK_TIMEOUT_S):
            log.error("the masks of grammars were not there after %g s; their thread is left to itself", MASK_TIMEOUT_S)
            self._worker = self._make()
            step.refuse(f"what it allows was not known after {MASK_TIMEOUT_S:g} s")
            return None
        return step.masks

    def settle(self, plan: StepPlan, tokens: Sequence[list[int]]) -> dict[int, GrammarRefusal]:
        """Appends forced tokens to a step's sampled `tokens` of each work, or replaces sampled by forced tokens.

        Returns the refusals of works that cannot continue, by index; their tokens are cleared.
        """
        step = self._steps.pop(plan.step, None)
        if step is None:
            return {}
        for index, work in step.works.items():
            drawn = tokens[index]
            if index in step.forced:
                drawn[:] = step.forced[index]
            elif index not in step.failed and drawn and _may_be_forced(work):
                self._extend(step, index, drawn)
            if index in step.failed:
                drawn.clear()
        return step.failed

    def _extend(self, step: _Step, index: int, drawn: list[int]) -> None:
        follower = self.preparation.known(step.works[index].sequence)
        if follower is None:
            return  # it was dropped, and the next step rebuilds it
        extended_draws: list[int] = []
        try:
            for token in drawn:  # forced tokens after a drawn token replace the remaining draws
                forced = follower.forced([token])
                extended_draws += forced
                if len(forced) > 1 or follower.ended:
                    break
            drawn[:] = extended_draws
        except GrammarError as error:
            step.failed[index] = GrammarRefusal(str(error))


def _along(matcher: LLMatcher, work: Work) -> dict[int, LLMatcher]:
    """Returns the matcher for each row of a work: copies after each draft token that the grammar allows."""
    states = {0: matcher}
    for draft, (parent, token) in enumerate(zip(parents_of(work), work.proposed, strict=True)):
        if (before := states.get(parent + 1)) is not None:
            extended = before.deep_copy()
            if extended.try_consume_tokens([token]):
                states[draft + 1] = extended
    return states


def _may_be_forced(work: Work) -> bool:
    """Returns whether forced tokens may skip sampling: no logprobs, one sample, no other token restrictions."""
    sampling = work.sampling
    assert sampling is not None
    decided = sampling.allowed_token_ids is not None or bool(sampling.bad_words)
    return len(work.samples) == 1 and sampling.logprobs is None and not decided
