"""From the job stream to the engine thread: each sequence once, and nothing while the worker is behind or leaving."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec import structs

from core.errors import StoreUnavailable
from core.ids import SequenceKey
from core.messages import AnyJob
from core.queue import JobQueue
from core.store import Outage
from worker.events import Kill, Submit
from worker.ledger import Ledger, Verdict
from worker.vitals import Vitals

BATCH = 64
WAIT_MS = 1000
PAUSE = 0.05  # s between looks while the worker is behind
BACK_OFF = 0.5  # s while Redis is away
log = logging.getLogger("baton.worker")


class Intake:
    """Takes jobs from this worker's stream."""

    def __init__(
        self,
        jobs: JobQueue,
        ledger: Ledger,
        vitals: Vitals,
        jobs_ahead: int,
        tell_engine: Callable[[Submit | Kill], None],
        started: Callable[[str, str, int, tuple[int, ...]], Awaitable[None]],
        on_cancel: Callable[[str, int, int], None],
    ) -> None:
        self._jobs = jobs
        self._ledger = ledger
        self._vitals = vitals
        self._jobs_ahead = jobs_ahead
        self._tell_engine = tell_engine
        self._started = started
        self._on_cancel = on_cancel

    async def run(self) -> None:
        """Takes jobs for ever. While Redis is away it waits; what is taken is never lost."""
        outage = Outage(log, "no new jobs until it is back")
        while not self._vitals.draining:
            room = self._jobs_ahead - self._vitals.load.waiting
            if room <= 0:
                await asyncio.sleep(PAUSE)
                continue
            try:
                taken = await self._jobs.take(min(BATCH, room), WAIT_MS)
            except StoreUnavailable as error:
                outage.begins(error)
                await asyncio.sleep(BACK_OFF)
                continue
            outage.ends()
            for job in taken:
                await self._accept(job)
        await self._close()

    async def _close(self) -> None:
        """A gateway that adds a job from now on learns at once that this worker takes none."""
        try:
            await self._jobs.close()
        except StoreUnavailable as error:
            log.warning("the job stream stays until it expires: %s", error)

    async def _accept(self, job: AnyJob) -> None:
        base = len(job.token_ids) - job.prompt_tokens
        wanted = []
        for sample in job.samples:
            key = SequenceKey(job.request, sample)
            verdict, superseded = self._ledger.begin(key, job.attempt, job.sender, base, job.deadline)
            if superseded:
                self._tell_engine(Kill(key, superseded, "superseded"))
            if job.attempt > 1:
                self._on_cancel(*key, job.attempt - 1)  # a lower attempt may be landing here
            if verdict is Verdict.NEW:
                wanted.append(sample)
        if wanted:
            self._tell_engine(Submit(structs.replace(job, samples=tuple(wanted))))
        await self._started(job.sender, job.request, job.attempt, job.samples)
