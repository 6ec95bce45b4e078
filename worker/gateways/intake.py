"""Passes jobs from their stream to the engine thread: each sequence once, and none while it is behind or leaving."""

import asyncio
import logging

from msgspec import structs

from contracts.errors import StoreUnavailable
from contracts.messages.job import AnyJob
from infra.redis.queue import JobQueue
from infra.redis.store import Outage
from worker.gateways.bodies import MAX_WAITING_JOBS as BODIES
from worker.gateways.connections import GatewayConnections
from worker.life import Life

JOBS_PER_TAKE = 64  # jobs taken at once
WAIT_MS = 1000  # ms that one question to Redis waits for a job
BUSY_PAUSE_S = 0.05  # s between looks at the engine while it is behind
OUTAGE_PAUSE_S = 0.5  # s between questions while Redis is away
log = logging.getLogger("baton.worker")


class Intake:
    """Takes jobs from this worker's stream, and tells gateways which were taken."""

    def __init__(self, life: Life, jobs: JobQueue, connections: GatewayConnections) -> None:
        self._life = life
        self._jobs = jobs
        self._connections = connections

    async def run(self) -> None:
        """Takes jobs until the worker drains. While Redis is away it waits; what is taken is never lost.

        Raises `MailboxFull` where the engine thread has stopped reading.
        """
        outage = Outage(log, "no new jobs until it is back")
        status, jobs_ahead = self._life.status, self._life.config.jobs_ahead
        while not status.draining:
            collected = len(self._connections.bodies)
            room = min(jobs_ahead - status.load.waiting, BODIES) - collected
            if room <= 0:
                await asyncio.sleep(BUSY_PAUSE_S)
                continue
            try:
                taken = await self._jobs.take(min(JOBS_PER_TAKE, room), WAIT_MS)
            except StoreUnavailable as error:
                outage.begins(error)
                await asyncio.sleep(OUTAGE_PAUSE_S)
                continue
            outage.ends()
            for job in map(self._taken_over, taken):
                wanted = self._connections.take(job)
                if wanted:
                    self._connections.bodies.add(structs.replace(job, samples=tuple(key.sample for key in wanted)))
                await self._connections.started(job)
            self._connections.taken = self._jobs.taken  # once a gateway hears this, it has heard every Started
        await self._close()

    def _taken_over(self, job: AnyJob) -> AnyJob:
        """Returns the job with its times in this worker's count, which no setting of Redis's clock moves."""
        queued_at, deadline = self._life.clock.taken_over(job.queued_at, job.deadline)
        return structs.replace(job, queued_at=queued_at, deadline=deadline)

    async def _close(self) -> None:
        """Removes the stream, so that a gateway that adds a job learns at once that this worker takes none."""
        try:
            await self._jobs.close()
        except StoreUnavailable as error:
            log.warning("the job stream stays until it expires: %s", error)
        self._connections.taken = self._jobs.taken
