"""Computes the masks of grammars on a thread of its own, while the engine's thread runs the step's forward pass."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import NoReturn

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par
from numpy.typing import NDArray

from core.errors import ModelError
from core.grammars import GrammarError, refuse_error
from engine.constraints import Masks
from engine.grammars.follower import Followers
from engine.plan import Plan, Work

SECONDS = 10.0  # s that a step waits for its masks; then its sequences with grammars fail, and the others go on
STACK = 64 << 20  # bytes: what a checker of grammars could compile on its own stack fits here
log = logging.getLogger("baton.worker")


@dataclass
class _Step:
    """Keeps what a step's grammars allow; the thread that computes it writes it, and then sets `done`."""

    works: dict[int, Work]  # by their index in the plan: those that are sampled under a grammar
    rows: dict[int, int]  # of each the row of logits
    done: threading.Event = field(default_factory=threading.Event)
    forced: dict[int, list[int]] = field(default_factory=dict)  # tokens that have to come: no draw counts
    failed: dict[int, str] = field(default_factory=dict)  # why
    masks: Masks | None = None  # of the others

    def refuse(self, why: str) -> None:
        """Lets all works fail."""
        self.failed, self.forced, self.masks = dict.fromkeys(self.works, why), {}, None


class _Worker:
    """Runs the thread. One that does not answer is left to itself, with all that it has."""

    def __init__(self, read: Callable[[], LLTokenizer], vocabulary: int, threads: int) -> None:
        self.followers: Followers | None = None  # None: the tokenizer cannot be read, or is not yet
        self._read = read
        self._words = -(-vocabulary // 32)
        self._threads = threads
        self._steps: SimpleQueue[_Step] = SimpleQueue()
        before = threading.stack_size(STACK)
        try:
            threading.Thread(target=self._run, name="grammar masks", daemon=True).start()
        finally:
            threading.stack_size(before)

    def post(self, step: _Step) -> None:
        """Has a step's masks computed."""
        self._steps.put(step)

    def _run(self) -> None:
        try:
            tokenizer = self._read()
            self.followers = Followers(tokenizer)
        except ModelError as error:
            self._refuse_all(str(error))
        except BaseException as error:  # a panic of llguidance's is no Exception
            log.exception("constrained output: the tokenizer")
            self._refuse_all(f"the tokenizer cannot be used ({type(error).__name__})")
        executor = LLExecutor(self._threads)
        while True:
            step = self._steps.get()
            try:
                self._compute(executor, step)
            except BaseException as error:  # this thread is everybody's: it goes on without what may be half done
                log.error("the masks of grammars could not be computed: %s", type(error).__name__)  # no text of theirs
                step.refuse(f"what it allows could not be computed ({type(error).__name__})")
                self.followers = Followers(tokenizer)
            step.done.set()

    def _refuse_all(self, why: str) -> NoReturn:
        """Answers every step, for ever, that its grammars cannot be followed."""
        while True:
            step = self._steps.get()
            step.refuse(why)
            step.done.set()

    def _compute(self, executor: LLExecutor, step: _Step) -> None:
        followers = self.followers
        assert followers is not None
        matchers: list[tuple[int, LLMatcher]] = []
        for index, work in step.works.items():
            try:
                follower = followers.of(work)
                if _may_be_forced(work) and (tokens := follower.forced([])):
                    step.forced[index] = tokens
                else:
                    matchers.append((index, follower.matcher))
            except GrammarError as error:
                step.failed[index] = str(error)
        bits: NDArray[np.int32] = np.zeros((len(matchers), self._words), np.int32)
        if matchers:
            fill_next_token_bitmask_par(executor, [(matcher, at) for at, (_, matcher) in enumerate(matchers)], bits)
        for index, matcher in matchers:
            try:
                refuse_error(matcher)
            except GrammarError as error:
                step.failed[index] = str(error)
        if matchers:
            step.masks = Masks([step.rows[index] for index, _ in matchers], bits)
        followers.trim(len(step.works))


class GrammarMasks:
    """Keeps the sequences of one engine to their grammars: see `engine.constraints.Constraints`."""

    def __init__(self, read: Callable[[], LLTokenizer], vocabulary: int, threads: int) -> None:
        """Begins to `read` the tokenizer, which may raise `ModelError`: then whoever has a grammar fails.

        `vocabulary` counts the model's ids. `threads` compute masks of one step.
        """
        self._make = partial(_Worker, read, vocabulary, threads)
        self._worker = self._make()
        self._steps: dict[int, _Step] = {}  # that have begun and are not settled, by their number
        self._newest: _Step | None = None  # None: nobody in the newest step has a grammar

    def begin(self, plan: Plan) -> None:
        """Starts computing the masks of a step; those who have no grammar cost nothing."""
        sampled = [(index, work) for index, work in enumerate(plan.works) if work.sampling is not None]
        works = {index: work for index, work in sampled if work.sampling is not None and work.sampling.grammar}
        self._newest = None
        if works:
            self._newest = self._steps[plan.step] = _Step(works, {index: row for row, (index, _) in enumerate(sampled)})
            self._worker.post(self._newest)

    def masks(self, works: Sequence[Work]) -> Masks | None:
        """Returns the masks of the step that has begun; None where none is needed. Waits for a bounded time."""
        step = self._newest
        if step is None:
            return None
        if not step.done.wait(SECONDS):
            log.error("the masks of grammars were not there after %g s; their thread is left to itself", SECONDS)
            self._worker = self._make()
            step.refuse(f"what it allows was not known after {SECONDS:g} s")
            return None
        return step.masks

    def settle(self, plan: Plan, tokens: Sequence[list[int]]) -> dict[int, str]:
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
        followers, work = self._worker.followers, step.works[index]
        follower = followers.known(work) if followers is not None else None
        if follower is None:
            return  # it was dropped: the next step makes it anew
        try:
            drawn[:] = follower.forced(drawn)
        except GrammarError as error:
            step.failed[index] = str(error)


def _may_be_forced(work: Work) -> bool:
    """Tells whether tokens may be taken without a draw: nobody asks how likely they were, and nothing else decides."""
    sampling = work.sampling
    assert sampling is not None
    decided = sampling.allowed_token_ids is not None or bool(sampling.bad_words)
    return len(work.samples) == 1 and sampling.logprobs is None and not decided
