"""Passes jobs over Redis streams: one per life of a worker, with a group of one consumer.

The group is made from id 0 before the worker registers, entries are added with NOMKSTREAM and never trimmed, and a
taken entry is acknowledged and deleted in one transaction. MAXLEN would discard jobs that nobody has read; a group made
at `$` would miss the first ones; XADD after expiry would make a stream without a group.
"""

import logging
from typing import Any

import redis

from core.errors import MessageError, QueueClosed, SealError, StoreUnavailable
from core.messages import AnyJob, decode_job, encode
from core.sealing import Sealer
from core.store import PREFIX, STORE_SECONDS, Store, answered

PURPOSE = "job bodies"
GROUP = "worker"
TTL_MS = 10_000  # ms, begun anew by each heartbeat; then a dead worker's jobs vanish, and their gateways retry them
log = logging.getLogger("baton.queue")


def stream_of(worker: str) -> str:
    """Returns the key of a worker life's job stream; it is also the place that bodies are sealed for."""
    return f"{PREFIX}jobs:{worker}"


@answered()
async def add_job(store: Store, sealer: Sealer, job: AnyJob) -> None:
    """Puts `job` on its worker's stream.

    Raises `QueueClosed` if that life of the worker is over, and `StoreUnavailable` if Redis is away.
    """
    key = stream_of(job.receiver)
    added = await store.xadd(key, {b"body": sealer.seal(encode(job), key)}, nomkstream=True)
    if added is None:
        raise QueueClosed(f"worker {job.receiver} takes no jobs any more")


class JobQueue:
    """Reads a worker's stream of jobs. Whatever asks Redis raises `StoreUnavailable` where it is away."""

    def __init__(self, store: Store, sealer: Sealer, epoch: str) -> None:
        self._store = store
        self._sealer = sealer
        self._key = stream_of(epoch)
        self.dropped = 0  # jobs that could not be read

    @answered()
    async def open(self) -> None:
        """Makes the stream and its group, or keeps those that are there."""
        try:
            await self._store.xgroup_create(self._key, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        await self.refresh()

    @answered()
    async def refresh(self) -> None:
        """Puts off the stream's expiry."""
        await self._store.pexpire(self._key, TTL_MS)

    async def take(self, most: int, wait_ms: int) -> list[AnyJob]:
        """Takes up to `most` jobs; waits up to `wait_ms` for the first. What cannot be read is dropped and counted."""
        found = await self._read_group(most, wait_ms)
        if found is None:
            await self.open()  # it expired while Redis was out of reach
            return []
        entries = [entry for _, batch in found for entry in batch]
        if not entries:
            return []
        try:
            async with answered(), self._store.pipeline(transaction=True) as pipe:
                ids = [entry_id for entry_id, _ in entries]
                pipe.xack(self._key, GROUP, *ids)
                pipe.xdel(self._key, *ids)
                await pipe.execute()
        except StoreUnavailable as error:  # they are here, so they are taken
            log.warning("taken jobs stay on the stream: %s", error)
        return [job for _, fields in entries if (job := self._read(fields)) is not None]

    async def _read_group(self, most: int, wait_ms: int) -> Any:
        """Reads entries that nobody has taken; returns None where stream or group is gone."""
        async with answered(wait_ms / 1000 + STORE_SECONDS):
            try:
                found = await self._store.xreadgroup(GROUP, GROUP, {self._key: ">"}, count=most, block=wait_ms)
            except redis.ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise
                return None
        return found or []

    @answered()
    async def waiting(self) -> int:
        """Counts the jobs that nobody has taken yet."""
        return int(await self._store.xlen(self._key))

    @answered()
    async def close(self) -> None:
        """Removes the stream, so that gateways which still add to it learn at once."""
        await self._store.delete(self._key)

    def _read(self, fields: dict[bytes, bytes]) -> AnyJob | None:
        try:
            return decode_job(self._sealer.open(fields.get(b"body", b""), self._key))
        except (MessageError, SealError) as error:
            self.dropped += 1
            log.warning("dropped a job: %s", error)
            return None
