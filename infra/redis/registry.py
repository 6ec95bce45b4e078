"""Keeps who is there: records with a time to live, renewed by a heartbeat, listed in one sorted set by expiry.

A missing heartbeat is only suspicion: whoever cares asks the worker directly before it calls it dead. Whatever asks
Redis raises `StoreUnavailable` where it is away.

Everybody who reaches Redis may read a record, but only the deployment's services make one that a gateway believes: it
is signed with a key from the secret, for the key that it stands at and with the number of its heartbeat, so that a
record can neither be made up, nor moved, nor put back where a later one was seen.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from infra.network.sealing import Signer
from infra.redis.clients import Store
from infra.redis.records import FinishedRecord, GatewayRecord, StatsSample, WorkerRecord
from infra.redis.store import KEY_PREFIX, answered

HEARTBEAT_S = 1.0  # s between heartbeats
TTL_MS = 5_000  # ms that a record lives
FINISHED_KEY = f"{KEY_PREFIX}finished"
STATS_KEY = f"{KEY_PREFIX}stats"
MAX_FINISHED = 10_000  # entries, about
MAX_STATS = 20_000  # entries, about
MAX_RECORDS = 4096  # records of a kind that are read at once: whoever fills Redis with more does not stop the reader
RECORDS_PER_TURN = 32  # that are checked and decoded in one turn of the event loop, in some 0.3 ms
RECORD_PURPOSE = "registry records"

Record = WorkerRecord | GatewayRecord
RecordType = TypeVar("RecordType", WorkerRecord, GatewayRecord)


class Published(Struct, frozen=True):
    """Is what stands at a record's key, as JSON."""

    record: msgspec.Raw
    beat: int  # larger at each heartbeat of a life
    signature: str


class SignedRecord(NamedTuple, Generic[RecordType]):
    """Holds a record that one of the deployment's services has signed, and the number of its heartbeat."""

    record: RecordType
    beat: int


def kind_of(record: type[WorkerRecord] | type[GatewayRecord]) -> str:
    """Returns the word for a record's kind in its keys."""
    return "worker" if record is WorkerRecord else "gateway"


def index_key(kind: str) -> str:
    """Returns the key of the sorted set of epochs by expiry, ms of the server's clock."""
    return f"{KEY_PREFIX}{{{kind}}}"


def record_key(kind: str, epoch: str) -> str:
    """Returns the key of one life's record."""
    return f"{KEY_PREFIX}{{{kind}}}:{epoch}"


@answered()
async def publish(store: Store, signer: Signer, record: Record, now: float) -> None:
    """Writes or renews a record. `now` is the server's time in seconds."""
    kind = kind_of(type(record))
    key, body, beat = record_key(kind, record.epoch), msgspec.json.encode(record), time.monotonic_ns()
    published = Published(msgspec.Raw(body), beat, signer.sign(body, _place(key, beat)))
    async with store.pipeline(transaction=True) as pipe:
        pipe.set(key, msgspec.json.encode(published), px=TTL_MS)
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
async def listed(
    store: Store, signer: Signer, record: type[RecordType], refused: Callable[[str], None] = lambda key: None
) -> list[SignedRecord[RecordType]]:
    """Returns the records whose heartbeat is not overdue; those of other versions are left out.

    So are those that nobody with this deployment's secret has signed for where they stand; `refused` gets their keys.
    """
    kind = kind_of(record)
    members: list[bytes] = await store.zrange(index_key(kind), 0, MAX_RECORDS - 1)  # type: ignore[assignment]
    keys = [record_key(kind, member.decode(errors="replace")) for member in members]
    if not keys:
        return []
    found: list[SignedRecord[RecordType]] = []
    for number, (key, body) in enumerate(zip(keys, await store.mget(keys), strict=True), 1):
        if number % RECORDS_PER_TURN == 0:
            await asyncio.sleep(0)
        if body is None:
            continue
        try:
            published = msgspec.json.decode(body, type=Published)
            if not signer.signed(bytes(published.record), _place(key, published.beat), published.signature):
                refused(key)
                continue
            found.append(SignedRecord(msgspec.json.decode(published.record, type=record), published.beat))
        except msgspec.DecodeError:  # of another version
            continue
    return found


def read_unchecked(body: bytes, record: type[RecordType]) -> RecordType | None:
    """Reads what stands at a record's key, for people; None where another version wrote something else.

    Whoever can write to Redis may have made it up.
    """
    try:
        return msgspec.json.decode(msgspec.json.decode(body, type=Published).record, type=record)
    except msgspec.DecodeError:
        return None


def _place(key: str, beat: int) -> str:
    return f"{key} {beat}"


@answered()
async def add_finished(store: Store, records: list[FinishedRecord]) -> None:
    """Appends records to the capped stream of requests that ended."""
    async with store.pipeline(transaction=False) as pipe:
        for record in records:
            pipe.xadd(FINISHED_KEY, {b"json": msgspec.json.encode(record)}, maxlen=MAX_FINISHED, approximate=True)
        await pipe.execute()


@answered()
async def add_stats(store: Store, sample: StatsSample) -> None:
    """Appends a sample to the capped stream of load samples."""
    await store.xadd(STATS_KEY, {b"json": msgspec.json.encode(sample)}, maxlen=MAX_STATS, approximate=True)
