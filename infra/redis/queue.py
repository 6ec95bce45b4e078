"""Job queues on Redis streams: one stream per life of a worker, with a group of one consumer.

The group is made from id 0 before the worker registers; entries are added with NOMKSTREAM and never trimmed; a taken
entry is acknowledged and deleted in one transaction. MAXLEN would discard unread jobs; a group from `$` would miss the
first jobs; XADD after the expiry would make a stream without a group.
"""

import logging
from typing import Any

import redis

from contracts.errors import MessageError, QueueClosed, SealError, StoreUnavailable
from contracts.ids import LAST_TICKET, NO_TICKET, Ticket
from contracts.messages.job import AnyJob, decode_job
from contracts.messages.wire import encode
from infra.network.sealing import Sealer
from infra.redis.clients import Store
from infra.redis.store import KEY_PREFIX, STORE_TIMEOUT_S, answered

JOB_PURPOSE = "job bodies"
CONSUMER_GROUP = "worker"
TTL_MS = 10_000  # renewed by each heartbeat; then a dead worker's jobs expire, and their gateways retry them
log = logging.getLogger("baton.queue")


def stream_of(worker: str) -> str:
    """Returns the key of a worker's stream, which is also the place that job bodies are sealed for."""
    return f"{KEY_PREFIX}jobs:{worker}"


@answered()
async def add_job(store: Store, sealer: Sealer, job: AnyJob) -> Ticket:
    """Adds a job to its worker's stream; returns its ticket there.

    Raises `QueueClosed` if that life of the worker is over, and `StoreUnavailable` if Redis is away.
    """
    key = stream_of(job.receiver)
    added = await store.xadd(key, {b"body": sealer.seal(encode(job), key)}, nomkstream=True)
    if added is None:
        raise QueueClosed(f"worker {job.receiver} takes no jobs any more")
    return Ticket.of(added)


class JobQueue:
    """Reads a worker's stream. Methods that ask Redis raise `StoreUnavailable` if it is away."""

    def __init__(self, store: Store, sealer: Sealer, epoch: str) -> None:
        self._store = store
        self._sealer = sealer
        self._key = stream_of(epoch)
        self.dropped = 0  # unreadable jobs
        self._last = NO_TICKET  # highest delivered ticket
        self.taken = NO_TICKET  # all entries up to this ticket have left the stream: taken, or lost

    @answered()
    async def open(self) -> None:
        try:
            await self._store.xgroup_create(self._key, CONSUMER_GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        await self.refresh()

    @answered()
    async def refresh(self) -> None:
        await self._store.pexpire(self._key, TTL_MS)

    async def take(self, most: int, wait_ms: int) -> list[AnyJob]:
        """Takes up to `most` jobs; waits up to `wait_ms` for the first. Drops and counts unreadable jobs."""
        entries = await self._read_group(">", most, wait_ms)
        if entries is None:
            await self._open_anew()
            return []
        if not entries:  # entries whose delivery was lost are not delivered again by ">"
            entries = await self._read_group("0", most)
        if not entries:
            return []
        try:
            async with answered(), self._store.pipeline(transaction=True) as pipe:
                ids = [entry_id for entry_id, _ in entries]
                pipe.xack(self._key, CONSUMER_GROUP, *ids)
                pipe.xdel(self._key, *ids)
                await pipe.execute()
        except StoreUnavailable as error:  # they were delivered, so they count as taken
            log.warning("taken jobs stay on the stream: %s", error)
        fresh = [fields for entry_id, fields in entries if Ticket.of(entry_id) > self._last]  # others were added again
        self.taken = self._last = max(self._last, Ticket.of(entries[-1][0]))
        return [job for fields in fresh if (job := self._read(fields)) is not None]

    async def _read_group(self, which: str, most: int, wait_ms: int = 0) -> list[Any] | None:
        """Reads entries that were never delivered (`>`), or not acknowledged (`0`).

        Returns None if the stream or its group is gone.
        """
        async with answered(wait_ms / 1000 + STORE_TIMEOUT_S):
            try:
                block = wait_ms or None  # 0 would block for ever
                found: Any = await self._store.xreadgroup(
                    CONSUMER_GROUP, CONSUMER_GROUP, {self._key: which}, count=most, block=block
                )
            except redis.ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise
                return None
        return [entry for _, batch in found or () for entry in batch]

    @answered()
    async def _open_anew(self) -> None:
        """Makes the stream again after it expired or Redis lost it. Its entries are lost."""
        seconds, microseconds = await self._store.time()
        await self.open()
        self._last = NO_TICKET
        self.taken = Ticket(1000 * seconds + microseconds // 1000 + 1, 0)

    @answered()
    async def waiting(self) -> int:
        return int(await self._store.xlen(self._key))

    async def close(self) -> None:
        """Removes the stream, so that gateways that add to it learn at once."""
        self.taken = LAST_TICKET
        async with answered():
            await self._store.delete(self._key)

    def _read(self, fields: dict[bytes, bytes]) -> AnyJob | None:
        try:
            return decode_job(self._sealer.open(fields.get(b"body", b""), self._key))
        except (MessageError, SealError) as error:
            self.dropped += 1
            log.warning("dropped a job: %s", error)
            return None
