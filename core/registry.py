"""Keeps who is there: records with a time to live, renewed by a heartbeat, listed in one sorted set by expiry.

A missing heartbeat is only suspicion: whoever cares asks the worker directly before it calls it dead. Whatever asks
Redis raises `StoreUnavailable` where it is away.
"""

import logging
from typing import Any, TypeVar

import msgspec

from core.records import FinishedRecord, GatewayRecord, StatsSample, WorkerRecord
from core.store import PREFIX, Store, answered

BEAT = 1.0  # s between heartbeats
TTL_MS = 5_000  # ms that a record lives
FINISHED = f"{PREFIX}finished"
STATS = f"{PREFIX}stats"
KEPT_FINISHED = 10_000  # entries, about
KEPT_STATS = 20_000  # entries, about

log = logging.getLogger("baton.registry")

Record = WorkerRecord | GatewayRecord
R = TypeVar("R", WorkerRecord, GatewayRecord)


def kind_of(record: type[WorkerRecord] | type[GatewayRecord]) -> str:
    """Returns the word for a record's kind in its keys."""
    return "worker" if record is WorkerRecord else "gateway"


def index_key(kind: str) -> str:
    """Returns the key of the sorted set of epochs by expiry, ms of the server's clock."""
    return f"{PREFIX}{kind}s"


def record_key(kind: str, epoch: str) -> str:
    """Returns the key of one life's record."""
    return f"{PREFIX}{kind}:{epoch}"


@answered()
async def publish(store: Store, record: Record, now: float) -> None:
    """Writes or renews a record. `now` is the server's time in seconds."""
    kind = kind_of(type(record))
    async with store.pipeline(transaction=True) as pipe:
        pipe.set(record_key(kind, record.epoch), msgspec.json.encode(record), px=TTL_MS)
        pipe.zadd(index_key(kind), {record.epoch: now * 1000 + TTL_MS})
        pipe.zremrangebyscore(index_key(kind), "-inf", now * 1000 - 10 * TTL_MS)
        await pipe.execute()


@answered()
async def withdraw(store: Store, record: Record) -> None:
    """Removes a record at a clean exit."""
    kind = kind_of(type(record))
    async with store.pipeline(transaction=True) as pipe:
        pipe.delete(record_key(kind, record.epoch))
        pipe.zrem(index_key(kind), record.epoch)
        await pipe.execute()


@answered()
async def listed(store: Store, record: type[R]) -> list[R]:
    """Returns the records whose heartbeat is not overdue; those of other versions are left out."""
    kind = kind_of(record)
    members: Any = await store.zrange(index_key(kind), 0, -1)
    epochs = [member.decode() for member in members]
    if not epochs:
        return []
    bodies = await store.mget([record_key(kind, epoch) for epoch in epochs])
    found: list[R] = []
    for epoch, body in zip(epochs, bodies, strict=True):
        try:
            if body is not None:
                found.append(msgspec.json.decode(body, type=record))
        except msgspec.DecodeError as error:  # of another version
            log.debug("%s %s has a record that cannot be read: %s", kind, epoch, error)
    return found


@answered()
async def add_finished(store: Store, records: list[FinishedRecord]) -> None:
    """Appends records to the capped stream of requests that ended."""
    async with store.pipeline(transaction=False) as pipe:
        for record in records:
            pipe.xadd(FINISHED, {b"json": msgspec.json.encode(record)}, maxlen=KEPT_FINISHED, approximate=True)
        await pipe.execute()


@answered()
async def add_stats(store: Store, sample: StatsSample) -> None:
    """Appends a sample to the capped stream of load samples."""
    await store.xadd(STATS, {b"json": msgspec.json.encode(sample)}, maxlen=KEPT_STATS, approximate=True)
