"""Prepares sequences with grammars on a separate thread: compiles grammars, and replays tokens of earlier attempts.

Neither the engine's thread nor the mask thread waits for it: the scheduler skips sequences that are not ready, and is
woken when one becomes ready.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from llguidance import LLTokenizer

from checkpoints.grammars import GrammarError
from contracts.errors import ModelError
from engine.grammars.follower import GrammarFollower, GrammarFollowers
from engine.plan import Work

PREPARATION_TIMEOUT_S = 10.0  # of one sequence; then it fails, and the thread is replaced
MAX_PREPARING_SEQUENCES = 256  # further sequences ask again later
GRAMMAR_STACK_BYTES = 64 << 20  # at least the stack of the gateway's grammar checker
log = logging.getLogger("baton.worker")


@dataclass(eq=False)
class _Job:
    """A request for a sequence's follower."""

    sequence: int  # id
    grammar: str
    tokens: Sequence[int]  # the sequence's own array, which does not grow meanwhile
    prompt_tokens: int
    began: float | None  # monotonic s; None: still queued


class Preparation:
    """Makes the followers of an engine's sequences (`engine.schedule.readiness.Readiness`)."""

    def __init__(self, read: Callable[[], LLTokenizer], wake: Callable[[], object]) -> None:
        """Starts to `read` the tokenizer; if that raises `ModelError`, sequences with grammars fail.

        `wake` is called on the thread whenever a sequence has become ready.
        """
        self._read = read
        self._wake = wake
        self._followers: GrammarFollowers | None = None
        self._problem: ModelError | None = None
        self._loaded = threading.Event()  # `_followers` or `_problem` is set
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}  # unfinished, by sequence, in order
        self._failed: dict[int, GrammarError | ModelError] = {}  # by sequence
        self._start()

    def ready(self, sequence: int, grammar: str, tokens: Sequence[int], prompt_tokens: int) -> bool:
        """Returns whether a sequence is prepared or has failed; else starts to prepare it."""
        with self._lock:
            if self._problem is not None or sequence in self._failed:
                return True
            if self._followers is not None and self._followers.known(sequence) is not None:
                return True
            job, now = self._jobs.get(sequence), time.monotonic()
            if job is None and len(self._jobs) < MAX_PREPARING_SEQUENCES:
                began = None if self._loaded.is_set() else now
                self._jobs[sequence] = job = _Job(sequence, grammar, tokens, prompt_tokens, began)
                self._queue.put(job)
            if job is None or job.began is None or now - job.began < PREPARATION_TIMEOUT_S:
                return False
            del self._jobs[sequence]
            self._failed[sequence] = ModelError(f"its grammar was not compiled after {PREPARATION_TIMEOUT_S:g} s")
            if self._loaded.is_set():
                log.error("a grammar was not compiled after %g s; the thread is left to itself", PREPARATION_TIMEOUT_S)
                self._start()
            return True

    def forget(self, sequence: int) -> None:
        """Drops the state of a sequence that has ended."""
        with self._lock:
            self._jobs.pop(sequence, None)
            self._failed.pop(sequence, None)
            if self._followers is not None:
                self._followers.forget(sequence)

    def follower(self, work: Work) -> GrammarFollower:
        """Returns the up-to-date follower of a work's sequence; makes it now if it was not prepared.

        Waits while the tokenizer is being read. Raises `GrammarError` if the grammar does not allow the output,
        `ModelError` for a fault of this worker.
        """
        with self._lock:
            failed = self._failed.get(work.sequence)
        if failed is not None:
            raise failed
        if not self._loaded.wait(PREPARATION_TIMEOUT_S):
            raise ModelError(f"the tokenizer was not read after {PREPARATION_TIMEOUT_S:g} s")
        if self._problem is not None:
            raise self._problem
        assert self._followers is not None
        return self._followers.of(work)

    def known(self, sequence: int) -> GrammarFollower | None:
        return self._followers.known(sequence) if self._followers is not None else None

    def trim(self, most: int) -> None:
        if self._followers is not None:
            self._followers.trim(most)

    def _start(self) -> None:
        self._queue: SimpleQueue[_Job] = SimpleQueue()
        for job in self._jobs.values():
            job.began = None
            self._queue.put(job)
        before = threading.stack_size(GRAMMAR_STACK_BYTES)
        try:
            threading.Thread(target=self._run, args=(self._queue,), name="grammars", daemon=True).start()
        finally:
            threading.stack_size(before)

    def _run(self, queue: SimpleQueue[_Job]) -> None:
        if not self._loaded.is_set():
            self._load()
        while self._followers is not None and queue is self._queue:
            job = queue.get()
            with self._lock:
                if self._jobs.get(job.sequence) is not job:
                    continue  # the sequence has ended
                job.began = time.monotonic()
            self._prepare(self._followers, job)

    def _load(self) -> None:
        try:
            followers, problem = GrammarFollowers(self._read()), None
        except ModelError as error:
            followers, problem = None, error
        except BaseException as error:  # a panic in llguidance is no Exception
            log.exception("constrained output: the tokenizer")
            followers, problem = None, ModelError(f"the tokenizer cannot be used ({type(error).__name__})")
        with self._lock:
            self._followers, self._problem = followers, problem
            for job in self._jobs.values():
                job.began = None
            self._loaded.set()
        self._wake()

    def _prepare(self, followers: GrammarFollowers, job: _Job) -> None:
        failed: GrammarError | ModelError | None = None
        follower: GrammarFollower | None = None
        try:
            follower = followers.made(job.grammar, job.tokens, job.prompt_tokens)
        except GrammarError as error:
            failed = error
        except BaseException as error:
            log.error("a grammar could not be compiled: %s", type(error).__name__)  # the message might quote texts
            failed = ModelError(f"its grammar could not be compiled ({type(error).__name__})")
        with self._lock:
            if self._jobs.get(job.sequence) is not job:
                return
            del self._jobs[job.sequence]
            if failed is not None:
                self._failed[job.sequence] = failed
            elif follower is not None:
                followers.keep(job.sequence, follower)
        self._wake()
