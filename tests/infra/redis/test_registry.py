"""The registry lists who is there, and forgets who is not."""

import logging

import msgspec
import pytest
from msgspec import structs

from contracts.errors import StoreRefused, StoreUnavailable
from infra.network.sealing import Sealer, Signer
from infra.redis.clients import Store, connect, redacted
from infra.redis.queue import JobQueue
from infra.redis.records import FinishedRecord, GatewayRecord, StatsSample, WorkerRecord
from infra.redis.registry import (
    FINISHED_KEY,
    RECORD_PURPOSE,
    STATS_KEY,
    Published,
    add_finished,
    add_stats,
    index_key,
    listed,
    publish,
    read_unchecked,
    record_key,
    withdraw,
)
from infra.redis.store import Outage, ServerClock, answered, check, until_answered
from infra.redis.worker_load import WorkerLoad
from tests.infra.redis.test_records import RECORD

TTL_MS = 5_000  # a worker that falls silent is in no gateway's list for longer
SIGNER = Signer(b"the deployment's secret", RECORD_PURPOSE)


def worker(epoch: str) -> WorkerRecord:
    return structs.replace(RECORD, epoch=epoch, load=WorkerLoad(running=2))


async def test_records_are_listed_until_withdrawn_or_expired(store: Store) -> None:
    for epoch in ("one", "two", "three"):
        await publish(store, SIGNER, worker(epoch), now=100.0)
    await publish(store, SIGNER, GatewayRecord("gate", "http://x", "demo", 1.0), now=100.0)
    assert {found.record.epoch for found in await listed(store, SIGNER, WorkerRecord)} == {"one", "two", "three"}
    assert [found.record.epoch for found in await listed(store, SIGNER, GatewayRecord)] == ["gate"]
    await withdraw(store, worker("one"))
    assert 0 < await store.pttl(record_key("worker", "two")) <= TTL_MS
    await store.delete(record_key("worker", "two"))  # as its expiry does
    assert [found.record for found in await listed(store, SIGNER, WorkerRecord)] == [worker("three")]
    await publish(store, SIGNER, worker("three"), now=100.0 + TTL_MS)
    assert await store.zcard(index_key("worker")) == 1, "long expired epochs leave the index"


async def test_only_what_the_deployment_signed_for_its_place_is_listed(store: Store) -> None:
    """Whoever can write to Redis can read a record, but not make one up, change one, or move one to another life."""
    refused: list[str] = []

    async def found() -> list[WorkerRecord]:
        refused.clear()
        return [each.record for each in await listed(store, SIGNER, WorkerRecord, refused.append)]

    await publish(store, SIGNER, worker("one"), now=100.0)
    body = await store.get(record_key("worker", "one"))
    assert isinstance(body, bytes)
    assert await found() == [worker("one")] and read_unchecked(body, WorkerRecord) == worker("one")
    published = msgspec.json.decode(body, type=Published)
    elsewhere = msgspec.Raw(msgspec.json.encode(structs.replace(worker("one"), address="tcp://evil:1")))
    await publish(store, Signer(b"another deployment", RECORD_PURPOSE), worker("two"), now=100.0)
    forged = {
        "one": structs.replace(published, record=elsewhere),
        "three": published,
    }
    for epoch, each in forged.items():
        await store.set(record_key("worker", epoch), msgspec.json.encode(each))
        await store.zadd(index_key("worker"), {epoch: 1e15})
    await store.zadd(index_key("worker"), {b"\xff": 1e15})
    await store.set(record_key("worker", "five"), msgspec.json.encode(worker("five")))
    await store.zadd(index_key("worker"), {"five": 1e15})
    assert await found() == []
    assert sorted(refused) == sorted(record_key("worker", epoch) for epoch in ("one", "two", "three"))
    later = structs.replace(published, beat=published.beat + 1)  # where it was, as if the life went on
    await store.set(record_key("worker", "one"), msgspec.json.encode(later))
    assert await found() == [] and record_key("worker", "one") in refused
    await store.set(record_key("worker", "one"), body)
    assert await found() == [worker("one")]


async def test_streams_of_history_are_capped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.redis.registry.MAX_FINISHED", 100)
    record = FinishedRecord(
        "r", "finished", "stop", 1.0, "demo", 3, 4, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0, 0, "p", "d", 1, True
    )
    await add_finished(store, [record] * 1000)
    assert 100 <= await store.xlen(FINISHED_KEY) < 400
    await add_stats(store, StatsSample(1.0, "one", "decode", WorkerLoad()))
    assert await store.xlen(STATS_KEY) == 1


async def test_the_servers_clock_is_followed(clean_redis: str) -> None:
    store = connect(clean_redis)
    clock = ServerClock()
    try:
        await clock.sync(store)
        seconds, microseconds = await store.time()
        assert abs(clock.now() - seconds - microseconds / 1e6) < 0.5
        assert abs(clock.server_now() - clock.now()) < 0.5
        assert 900 < clock.remaining_ms(clock.now() + 1) <= 1000
        await check(store, clean_redis)
    finally:
        await store.aclose()


async def test_a_server_that_is_away_is_named_without_its_password() -> None:
    url = "redis://:geheim@127.0.0.1:1/0"
    store = connect(url)
    try:
        with pytest.raises(StoreUnavailable, match="--redis") as error:
            await check(store, url)
    finally:
        await store.aclose()
    assert "geheim" not in str(error.value)
    assert redacted(url) == "redis://:***@127.0.0.1:1/0"


async def test_redis_that_is_away_is_one_error(caplog: pytest.LogCaptureFixture) -> None:
    store = connect("redis://127.0.0.1:1")
    moments = iter((0.0, 59.0, 60.0, 119.0))
    outage = Outage(logging.getLogger("baton.test"), "nobody beats until it is back", lambda: next(moments))
    try:
        for _ in range(4):
            with pytest.raises(StoreUnavailable, match="Redis is away") as caught:
                await publish(store, SIGNER, worker("one"), now=100.0)
            outage.begins(caught.value)
            assert outage.lasts
        with pytest.raises(StoreUnavailable):
            await JobQueue(store, Sealer(b"0123456789abcdef", "job bodies"), "one").take(1, 10)
    finally:
        await store.aclose()
    outage.ends()
    outage.ends()
    assert not outage.lasts
    said = [record.getMessage() for record in caplog.records if record.name == "baton.test"]
    assert len(said) == 3 and "nobody beats" in said[0] and said[2] == "Redis is back"
    assert "for 60 s now" in said[1], "once a minute"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("unix://stranger:wrong@{path}", "invalid username-password pair"),
        ("unix://{path}?db=99", "DB index is out of range"),
        ("unix://weak:weak@{path}", "no permissions"),
    ],
)
async def test_what_waiting_does_not_mend_is_an_error_of_its_own(clean_redis: str, url: str, why: str) -> None:
    admin = connect(clean_redis)
    await admin.acl_setuser("weak", enabled=True, passwords=["+weak"], commands=["+info"])
    store = connect(url.format(path=clean_redis.removeprefix("unix://")))
    try:
        with pytest.raises(StoreRefused, match=why):
            await until_answered(lambda: ServerClock().sync(store), Outage(logging.getLogger("baton.test"), ""))
    finally:
        await admin.acl_deluser("weak")
        await admin.aclose()
        await store.aclose()


async def test_a_cluster_that_is_away_is_the_same_error() -> None:
    store = connect("redis+cluster://127.0.0.1:1")
    try:
        with pytest.raises(StoreUnavailable, match="Redis is away"):
            await ServerClock().sync(store)
    finally:
        await store.aclose()


async def test_redis_that_is_silent_is_away_in_bounded_time(store: Store) -> None:
    with pytest.raises(StoreUnavailable, match="TimeoutError"):
        async with answered(0.05):
            await store.blpop(["baton:nothing"], 4)
