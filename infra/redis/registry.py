"""Registry of workers and gateways in Redis: expiring records that heartbeats renew, indexed by expiry.

A missing heartbeat is only a suspicion: ask the worker before calling it dead. Functions raise `StoreUnavailable` if
Redis is away.

Every client of Redis can read a record, but gateways believe only signed records. A signature is made with a key from
the deployment's secret, for the record's key and heartbeat number, so a record cannot be forged, moved, or replaced by
an earlier one.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from infra.network.sealing import Signer
from infra.redis.clients import Store
from infra.redis.records import FinishedRecord, GatewayRecord, IntervalRecord, RunMark, StatsSample, WorkerRecord
from infra.redis.store import KEY_PREFIX, answered

TTL_MS = 5_000  # of a record
FINISHED_KEY = f"{KEY_PREFIX}finished"
STATS_KEY = f"{KEY_PREFIX}stats"
INTERVALS_KEY = f"{KEY_PREFIX}intervals"
RUN_MARKS_KEY = f"{KEY_PREFIX}run-marks"
MAX_RUN_MARKS = 1_000  # approximate length of the stream
MAX_INTERVALS = 12_000  # approximate length of the stream: four days of one gateway, a day of four
MAX_FINISHED = 10_000  # approximate length of the stream
MAX_STATS = 20_000  # approximate length of the stream
MAX_RECORDS = 4096  # read at once, of a kind; bounds the work if Redis is filled with others
RECORDS_PER_TURN = 32  # checked and decoded in one turn of the event loop, about 0.3 ms
RECORD_PURPOSE = "registry records"

Record = WorkerRecord | GatewayRecord
RecordType = TypeVar("RecordType", WorkerRecord, GatewayRecord)


class Published(Struct, frozen=True):
    """The JSON at a record's key."""

    record: msgspec.Raw
    beat: int  # grows with each heartbeat
    signature: str


class SignedRecord(NamedTuple, Generic[RecordType]):
    """A record signed by one of the deployment's services, and its heartbeat number."""

    record: RecordType
    beat: int


def kind_of(record: type[WorkerRecord] | type[GatewayRecord]) -> str:
    return "worker" if record is WorkerRecord else "gateway"


def index_key(kind: str) -> str:
    """Returns the key of the sorted set of epochs by expiry, ms of server time."""
    return f"{KEY_PREFIX}{{{kind}}}"


def record_key(kind: str, epoch: str) -> str:
    return f"{KEY_PREFIX}{{{kind}}}:{epoch}"


@answered()
async def publish(store: Store, signer: Signer, record: Record, now: float) -> None:
    """Writes or renews a record. `now`: server time, s."""
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
    kind = kind_of(type(record))
    async with store.pipeline(transaction=True) as pipe:
        pipe.delete(record_key(kind, record.epoch))
        pipe.zrem(index_key(kind), record.epoch)
        await pipe.execute()


@answered()
async def listed(
    store: Store, signer: Signer, record: type[RecordType], refused: Callable[[str], None] = lambda key: None
) -> list[SignedRecord[RecordType]]:
    """Returns the records whose heartbeat is not overdue.

    Skips records of other versions, and records without a valid signature for their key, with whose keys `refused` is
    called.
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
    """Reads a record's JSON without checking its signature; None if it is of another version.

    Any client that can write to Redis may have made it.
    """
    try:
        return msgspec.json.decode(msgspec.json.decode(body, type=Published).record, type=record)
    except msgspec.DecodeError:
        return None


def _place(key: str, beat: int) -> str:
    return f"{key} {beat}"


@answered()
async def add_finished(store: Store, records: list[FinishedRecord]) -> None:
    async with store.pipeline(transaction=False) as pipe:
        for record in records:
            pipe.xadd(FINISHED_KEY, {b"json": msgspec.json.encode(record)}, maxlen=MAX_FINISHED, approximate=True)
        await pipe.execute()


@answered()
async def add_interval(store: Store, interval: IntervalRecord) -> None:
    await store.xadd(INTERVALS_KEY, {b"json": msgspec.json.encode(interval)}, maxlen=MAX_INTERVALS, approximate=True)


@answered()
async def add_run_mark(store: Store, mark: RunMark) -> None:
    await store.xadd(RUN_MARKS_KEY, {b"json": msgspec.json.encode(mark)}, maxlen=MAX_RUN_MARKS, approximate=True)


@answered()
async def add_stats(store: Store, sample: StatsSample) -> None:
    await store.xadd(STATS_KEY, {b"json": msgspec.json.encode(sample)}, maxlen=MAX_STATS, approximate=True)
