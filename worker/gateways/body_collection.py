"""Passes jobs on to the engine thread once they are whole: it asks gateways for the prompts that come from them."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from msgspec import structs

from contracts.messages.gateway import REASON_DRAINING, Piece
from contracts.messages.job import AnyJob
from worker.events import AttemptFailure, Fail, Submit
from worker.gateways.bodies import REASON_NO_BODY, REPEAT_S, MissingPrompt, PromptBodies
from worker.gateways.ledger import Ledger
from worker.life import Life


class BodyCollection:
    """Keeps jobs until their prompts have come; what is cancelled meanwhile never reaches the engine thread.

    `ask` sends a question for a job's ids from an index on; `fail` takes what will not come.
    """

    def __init__(
        self,
        life: Life,
        ledger: Ledger,
        ask: Callable[[AnyJob, int], Awaitable[None]],
        fail: Callable[[Fail], None],
    ) -> None:
        self._life = life
        self._ledger = ledger
        self._ask = ask
        self._fail = fail
        self._bodies = PromptBodies()
        self._news = asyncio.Event()

    def __len__(self) -> int:
        """Counts the jobs whose prompts have not come."""
        return len(self._bodies)

    def add(self, job: AnyJob) -> None:
        """Takes a job that was entered into the ledger, and passes it on if it is whole."""
        if job.body is None:
            self._submit(job)
        else:
            self._bodies.add(job)
            self._news.set()

    def take(self, piece: Piece) -> None:
        """Takes a piece of a prompt. The job that it completes is passed on, unless it was cancelled meanwhile."""
        come = self._bodies.take(piece, time.monotonic())
        if isinstance(come, MissingPrompt):
            self._miss(come, REASON_NO_BODY)
        elif come is not None and (wanted := tuple(key.sample for key in come.attempts() if self._ledger.lives(key))):
            self._submit(structs.replace(come, samples=wanted))
        self._news.set()  # the next piece, or another prompt, may be asked for

    async def run(self) -> None:
        """Asks, and asks again, until cancelled."""
        while True:
            self._news.clear()
            self._bodies.forget(self._ledger.lives)
            for missing in self._bodies.silent(time.monotonic()):
                self._miss(missing, REASON_NO_BODY)
            for job, first in self._bodies.due(time.monotonic()):
                await self._ask(job, first)
            await self._wait()

    def leave(self) -> None:
        """Gives up what has not come, for the worker leaves."""
        for missing in self._bodies.leave():
            self._miss(missing, REASON_DRAINING)

    async def _wait(self) -> None:
        """Waits for news; while something is awaited, not longer than until it is asked for again."""
        try:
            async with asyncio.timeout(REPEAT_S if self._bodies else None):
                await self._news.wait()
        except TimeoutError:
            pass

    def _submit(self, job: AnyJob) -> None:
        self._life.status.posted = self._life.status.posted.and_prompt(len(job.prompt.token_ids))
        self._life.inbox.post(Submit(job))

    def _miss(self, missing: MissingPrompt, reason: str) -> None:
        for key in missing.job.attempts():
            self._fail(Fail(key, AttemptFailure(reason, missing.why, retryable=True)))
