"""Takes jobs from the worker's stream, and passes them to the engine thread once their prompts are complete.

Each attempt is passed on once. No jobs are taken while the engine is behind, or the worker drains. The ids of long
prompts come over the gateways' connections; a job that is cancelled meanwhile never reaches the engine thread.
"""

import asyncio
import logging
import time

from msgspec import structs

from contracts.errors import StoreUnavailable
from contracts.ids import AttemptKey
from contracts.messages.gateway import REASON_DRAINING, Piece
from contracts.messages.job import AnyJob
from infra.redis.queue import JobQueue
from infra.redis.store import Outage
from kvtransfer.events import CancelAttempt
from worker.events import AttemptFailure, Fail, Kill
from worker.gateways.bodies import MAX_WAITING_JOBS, REASON_NO_BODY, REPEAT_S, MissingPrompt, PromptBodies
from worker.gateways.connections import GatewayConnections
from worker.gateways.ledger import AttemptArrival
from worker.life import Life
from worker.transfer import Transfer

JOBS_PER_TAKE = 64
WAIT_MS = 1000  # longest wait for a job in Redis
BUSY_PAUSE_S = 0.05  # while the engine is behind
OUTAGE_PAUSE_S = 0.5  # between two attempts while Redis is away
log = logging.getLogger("baton.worker")


class Intake:
    """The jobs of a worker between their stream and the engine thread.

    Methods that pass events to the engine thread raise `MailboxFull` if it has stopped reading.
    """

    def __init__(self, life: Life, jobs: JobQueue, connections: GatewayConnections, transfer: Transfer) -> None:
        self._life = life
        self._jobs = jobs
        self._connections = connections
        self._ledger = connections.ledger
        self._transfer = transfer
        self._bodies = PromptBodies()
        self._news = asyncio.Event()  # set when another prompt or piece may be asked for

    def __len__(self) -> int:
        return len(self._bodies)

    # jobs -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Takes jobs until the worker drains. While Redis is away it waits; no taken job is lost."""
        outage = Outage(log, "no new jobs until it is back")
        status, jobs_ahead = self._life.status, self._life.config.jobs_ahead
        while not status.draining:
            free = min(jobs_ahead - status.load.waiting, MAX_WAITING_JOBS) - len(self._bodies)
            if free <= 0:
                await asyncio.sleep(BUSY_PAUSE_S)
                continue
            try:
                taken = await self._jobs.take(min(JOBS_PER_TAKE, free), WAIT_MS)
            except StoreUnavailable as error:
                outage.begins(error)
                await asyncio.sleep(OUTAGE_PAUSE_S)
                continue
            outage.ends()
            for job in taken:
                self._begin(job)
                await self._connections.started(job)
            # a gateway that reads this number has read all earlier Started messages
            self._connections.taken = self._jobs.taken
        await self._close()

    def _begin(self, job: AnyJob) -> None:
        """Enters a job's new attempts into the ledger, and passes them on if the prompt is complete."""
        queued_at, deadline = self._life.clock.taken_over(job.queued_at, job.deadline)
        job = structs.replace(job, queued_at=queued_at, deadline=deadline)
        samples = tuple(key.sample for key in job.attempts() if self._is_new(key, job))
        if not samples:
            return
        job = structs.replace(job, samples=samples)
        if job.body is None:
            self._submit(job)
        else:
            self._bodies.add(job)
            self._news.set()

    def _is_new(self, key: AttemptKey, job: AnyJob) -> bool:
        arrival, superseded = self._ledger.begin(key, job.sender, job.emitted, job.deadline)
        if superseded is not None:
            self._life.inbox.post(Kill(superseded, "superseded"))
        if key.attempt > 1:  # a lower attempt may be landing here
            self._transfer.handle(CancelAttempt(key._replace(attempt=key.attempt - 1)))
        return arrival is AttemptArrival.NEW

    def _submit(self, job: AnyJob) -> None:
        self._life.status.posted = self._life.status.posted.and_prompt(len(job.prompt.token_ids))
        self._life.inbox.post(job)

    async def _close(self) -> None:
        """Removes the stream, so that gateways that add a job learn at once that this worker takes none."""
        try:
            await self._jobs.close()
        except StoreUnavailable as error:
            log.warning("the job stream stays until it expires: %s", error)
        self._connections.taken = self._jobs.taken

    # prompts --------------------------------------------------------------------------------------------------------

    def take(self, piece: Piece) -> None:
        """Takes a piece of a prompt. A completed job is passed on, except for cancelled samples."""
        job = self._bodies.take(piece, time.monotonic())
        if isinstance(job, MissingPrompt):
            self._fail(job, REASON_NO_BODY)
        elif job is not None and (living := tuple(key.sample for key in job.attempts() if self._ledger.lives(key))):
            self._submit(structs.replace(job, samples=living))
        self._news.set()

    async def collect(self) -> None:
        """Requests the prompts of jobs, repeatedly, until cancelled."""
        while True:
            self._news.clear()
            self._bodies.forget(self._ledger.lives)
            for missing in self._bodies.silent(time.monotonic()):
                self._fail(missing, REASON_NO_BODY)
            for job, first in self._bodies.due(time.monotonic()):
                await self._connections.ask_for_ids(job, first)
            try:
                async with asyncio.timeout(REPEAT_S if self._bodies else None):
                    await self._news.wait()
            except TimeoutError:
                pass

    def leave(self) -> None:
        """Fails the jobs with incomplete prompts, because the worker leaves."""
        for missing in self._bodies.leave():
            self._fail(missing, REASON_DRAINING)

    def _fail(self, missing: MissingPrompt, reason: str) -> None:
        for key in missing.job.attempts():
            self._connections.handle(Fail(key, AttemptFailure(reason, missing.why, retryable=True)))
