"""Computes the masks of grammars on a thread of its own, while the engine's thread runs the step's forward pass."""

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

MASK_TIMEOUT_S = 10.0  # s that a step waits for its masks; then its sequences with grammars fail, and the others go on
log = logging.getLogger("baton.worker")


@dataclass
class _Step:
    """Keeps what a step's grammars allow; the thread that computes it writes it, and then sets `done`."""

    works: dict[int, Work]  # by their index in the plan: those that are sampled under a grammar
    rows: dict[int, int]  # of each the first row of logits; those of its guesses are behind it
    done: threading.Event = field(default_factory=threading.Event)
    forced: dict[int, list[int]] = field(default_factory=dict)  # tokens that have to come: no draw counts
    failed: dict[int, GrammarRefusal] = field(default_factory=dict)
    masks: Masks | None = None  # of the others

    def refuse(self, why: str) -> None:
        """Lets all works fail, by no fault of theirs."""
        self.failed, self.forced, self.masks = dict.fromkeys(self.works, GrammarRefusal(why, ours=True)), {}, None


class _Worker:
    """Runs the thread. One that does not answer is left to itself."""

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
        """Has a step's masks computed."""
        self._steps.put(step)

    def _run(self) -> None:
        executor = LLExecutor(self._threads)
        while True:
            step = self._steps.get()
            try:
                self._compute(executor, step)
            except BaseException as error:  # this thread is everybody's: it goes on without what may be half done
                log.error("the masks of grammars could not be computed: %s", type(error).__name__)  # no text of theirs
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
                step.failed[index] = GrammarRefusal(str(error), ours=True)
        bits: NDArray[np.int32] = np.zeros((len(matchers), self._words), np.int32)
        if matchers:
            fill_next_token_bitmask_par(executor, [(matcher, at) for at, (*_, matcher) in enumerate(matchers)], bits)
        for index, row, matcher in matchers:
            if row > step.rows[index]:
                continue  # nothing is allowed behind that guess; if it comes, the next step says why
            try:
                refuse_error(matcher)
            except GrammarError as error:
                step.failed[index] = GrammarRefusal(str(error))
        if matchers:
            step.masks = Masks([row for _, row, _ in matchers], bits)
        self._preparation.trim(2 * len(step.works))  # with two steps in flight, they are in every other one


class GrammarMasks:
    """Keeps the sequences of one engine to their grammars: see `engine.constraints.GrammarConstraints`."""

    def __init__(self, preparation: Preparation, vocabulary: int, threads: int) -> None:
        """`vocabulary` counts the model's ids. `threads` compute masks of one step."""
        self.preparation = preparation
        self._make = partial(_Worker, preparation, vocabulary, threads)
        self._worker = self._make()
        self._steps: dict[int, _Step] = {}  # that have begun and are not settled, by their number
        self._newest: _Step | None = None  # None: nobody in the newest step has a grammar

    def begin(self, plan: StepPlan) -> None:
        """Starts computing the masks of a step; those who have no grammar cost nothing."""
        sampled = [(index, work) for index, work in enumerate(plan.works) if work.sampling is not None]
        works = {index: work for index, work in sampled if work.sampling is not None and work.sampling.grammar}
        self._newest = None
        if works:
            firsts = accumulate((row_count(work) for _, work in sampled), initial=0)
            rows = {index: first for first, (index, _) in zip(firsts, sampled, strict=False)}
            self._newest = self._steps[plan.step] = _Step(works, rows)
            self._worker.post(self._newest)

    def masks(self, works: Sequence[Work]) -> Masks | None:
        """Returns the masks of the step that has begun; None where none is needed. Waits for a bounded time."""
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
        """Adds to what a step has drawn, `tokens` of each work, what has to follow; or puts that in its place.

        Returns by their index the works that cannot go on, and why; they get no token.
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
            return  # it was dropped: the next step makes it anew
        found: list[int] = []
        try:
            for token in drawn:  # what has to follow one of them takes the place of the next
                more = follower.forced([token])
                found += more
                if len(more) > 1 or follower.ended:
                    break
            drawn[:] = found
        except GrammarError as error:
            step.failed[index] = GrammarRefusal(str(error))


def _along(matcher: LLMatcher, work: Work) -> dict[int, LLMatcher]:
    """Returns by row of a work the matcher, and copies behind its guesses, up to those that the grammar does not allow.

    What is drawn behind one of those does not count.
    """
    states = {0: matcher}
    for guess, (parent, token) in enumerate(zip(parents_of(work), work.proposed, strict=True)):
        if (before := states.get(parent + 1)) is not None:
            behind = before.deep_copy()
            if behind.try_consume_tokens([token]):
                states[guess + 1] = behind
    return states


def _may_be_forced(work: Work) -> bool:
    """Tells whether tokens may be taken without a draw: nobody asks how likely they were, and nothing else decides."""
    sampling = work.sampling
    assert sampling is not None
    decided = sampling.allowed_token_ids is not None or bool(sampling.bad_words)
    return len(work.samples) == 1 and sampling.logprobs is None and not decided
