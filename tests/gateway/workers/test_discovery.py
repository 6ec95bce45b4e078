"""What Redis shows is believed with care: a record that is no good harms no other, and nobody steers by writing one."""

import asyncio
import logging
import os
import resource
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

from contracts.ids import AttemptKey
from contracts.messages.gateway import Alive, News
from contracts.messages.wire import VERSION
from gateway.workers.connection import WorkerConnection
from gateway.workers.directory import WorkerDirectory
from gateway.workers.discovery import (
    FIRST_SILENT_S,
    LOOK_INTERVAL_S,
    MAX_BURIED_S,
    MAX_FOREIGN_S,
    UNREACHED_AFTER_S,
    Discovery,
)
from gateway.workers.liveness import HANGS_AFTER_MS
from infra.network.curve_keys import CurveKeys
from infra.network.sealing import Signer
from infra.redis.clients import Store, connect
from infra.redis.records import WorkerRecord
from infra.redis.registry import RECORD_PURPOSE, publish, record_key
from infra.redis.store import ServerClock
from tests.gateway.conftest import SECRET
from tests.gateway.peer import Peer
from tests.gateway.running import until

SIGNER = Signer(SECRET.encode(), RECORD_PURPOSE)


class Finder:
    def __init__(self, redis_url: str, model: Path) -> None:
        self.store: Store = connect(redis_url)
        self.workers = WorkerDirectory[WorkerConnection]()
        self.dead: list[str] = []
        keys = CurveKeys.of(SECRET.encode())
        self.discovery = Discovery(
            self.store, SIGNER, ServerClock(), "gateway", str(model), keys, self.workers, listener=self
        )

    def received(self, worker: WorkerConnection, news: News) -> None: ...

    def dropped(self) -> None: ...

    def died(self, worker: WorkerConnection) -> None:
        self.dead.append(worker.epoch)

    def known(self) -> set[str]:
        return {worker.epoch for worker in self.workers}

    async def poll(self) -> set[str]:
        await self.discovery.poll()
        return self.known()

    async def reach(self, peer: Peer) -> None:

        def usable() -> bool:
            self.discovery.look()
            worker = self.workers.get(peer.epoch)
            return worker is not None and worker.usable

        await until(usable, "the peer to be usable")


@pytest.fixture
async def finder(redis_url: str, model: Path) -> AsyncIterator[Finder]:
    finder = Finder(redis_url, model)
    await finder.store.flushall()
    yield finder
    await finder.discovery.close()
    await finder.store.aclose()


@pytest.fixture
async def peer(redis_url: str, model: Path, finder: Finder) -> AsyncIterator[Peer]:
    peer = await Peer("decode", redis_url, SECRET.encode(), str(model), lambda *_: []).start()
    yield peer
    await peer.die()


@pytest.fixture
async def peers(redis_url: str, model: Path, finder: Finder) -> AsyncIterator[list[Peer]]:
    more = [await Peer("decode", redis_url, SECRET.encode(), str(model), lambda *_: []).start() for _ in range(2)]
    yield more
    for each in more:
        await each.die()


def like(peer: Peer, epoch: str, address: str) -> WorkerRecord:
    """The record of another life, as the deployment would sign it."""
    return structs.replace(peer.record, epoch=epoch, address=address)


@pytest.mark.parametrize("address", ["", "tcp://", "tcp://host", "tcp://host:notaport", "ipc://", "nonsense"])
async def test_a_record_with_a_bad_address_harms_no_other(
    finder: Finder, peer: Peer, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(finder.store, SIGNER, like(peer, "bad", address), time.time())
    assert await finder.poll() == {peer.epoch}
    assert await finder.poll() == {peer.epoch}
    (said,) = [record.getMessage() for record in caplog.records if "bad" in record.getMessage()]
    assert repr(address) in said and "cannot be connected to" in said
    await finder.reach(peer)


async def test_a_gateway_without_descriptors_waits_for_one(
    finder: Finder, peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finder.store.ping()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)  # the lowest number that is free: from here on none is
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, limits[1]))
    try:
        assert await finder.poll() == set()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "Too many open files" in caplog.text
    monkeypatch.setattr("gateway.workers.discovery.MAX_BURIED_S", 0.0)
    finder.discovery._buried.clear()  # as time does
    await peer.beat()
    assert await finder.poll() == {peer.epoch}
    await finder.reach(peer)


async def test_an_old_record_that_is_put_back_says_nothing(finder: Finder, peer: Peer) -> None:
    key = record_key("worker", peer.epoch)
    await finder.poll()
    old = await finder.store.get(key)
    assert old is not None
    peer.record = structs.replace(peer.record, draining=True)
    await peer.beat()
    await finder.poll()
    worker = finder.workers.get(peer.epoch)
    assert worker is not None and worker.record.draining
    await finder.store.set(key, old)
    await finder.poll()
    assert worker.record.draining


async def test_records_that_vanish_together_make_nobody_suspect(finder: Finder, peer: Peer, peers: list[Peer]) -> None:
    for one in (peer, *peers):
        await one.beat()
    await finder.poll()
    for one in (peer, *peers):
        await finder.reach(one)
    await finder.store.flushall()
    await finder.poll()
    assert all(worker.liveness.beating for worker in finder.workers)
    for one in peers:
        await one.beat()
    await finder.poll()
    assert {worker.epoch for worker in finder.workers if not worker.liveness.beating} == {peer.epoch}


async def test_a_worker_whose_connection_broke_here_is_left_at_once(
    finder: Finder, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(worker: WorkerConnection, news: News) -> None:
        raise ZeroDivisionError("a bug of the listener")

    monkeypatch.setattr(finder, "received", bug)
    await finder.poll()
    await finder.reach(peer)
    key = AttemptKey("request-1", 0, 1)
    await peer.say("gateway", Alive(sender=peer.epoch, receiver="gateway", key=key, state="running"))

    def left() -> bool:
        finder.discovery.look()
        return finder.dead == [peer.epoch]

    await until(left, "the worker to be left")
    assert finder.known() == set()


async def test_a_life_that_never_answers_is_dropped_and_comes_back_with_a_new_heartbeat_only(
    finder: Finder, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = 0.0
    monkeypatch.setattr("gateway.workers.discovery.time", SimpleNamespace(monotonic=lambda: time.monotonic() + later))
    gone = like(peer, "gone", "tcp://127.0.0.1:1")
    await publish(finder.store, SIGNER, gone, time.time())
    assert await finder.poll() == {peer.epoch, "gone"}
    await finder.reach(peer)
    later += UNREACHED_AFTER_S + 1
    finder.discovery.look()
    assert (finder.known(), finder.dead) == ({peer.epoch}, ["gone"])
    later += MAX_BURIED_S + 1
    assert "gone" not in await finder.poll()
    assert [(pair.receiver, pair.address) for pair in finder.discovery.unreached] == [("gone", "tcp://127.0.0.1:1")]
    await publish(finder.store, SIGNER, gone, time.time())
    assert "gone" in await finder.poll()
    assert len(finder.discovery.unreached) == 1  # tried again, and not there yet


async def test_a_worker_that_was_silent_comes_back_when_it_answers_and_later_each_time(
    finder: Finder, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = 0.0
    monkeypatch.setattr("gateway.workers.discovery.time", SimpleNamespace(monotonic=lambda: time.monotonic() + later))

    async def back() -> bool:
        await peer.beat()
        return peer.epoch in await finder.poll()

    for deaths, seconds in enumerate((FIRST_SILENT_S, 2 * FIRST_SILENT_S), 1):
        await finder.poll()
        await finder.reach(peer)
        peer.faults["frozen"] = True
        while len(finder.dead) < deaths:
            later += LOOK_INTERVAL_S
            finder.discovery.look()
            await asyncio.sleep(0)
        peer.faults.clear()
        assert not await back(), "it has a moment to come to"
        later += seconds - 0.5
        assert not await back()
        later += 0.6
        assert await back()
    await finder.reach(peer)


async def test_a_worker_that_hangs_does_not_come_back_so_soon(
    finder: Finder, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = 0.0
    monkeypatch.setattr("gateway.workers.discovery.time", SimpleNamespace(monotonic=lambda: time.monotonic() + later))
    await finder.poll()
    peer.faults["step_due_ms"] = -2 * HANGS_AFTER_MS

    def died() -> bool:
        finder.discovery.look()
        return finder.dead == [peer.epoch]

    await until(died, "the worker to be dead")
    later += MAX_BURIED_S - 1
    await peer.beat()
    assert await finder.poll() == set()
    later += 2
    await peer.beat()
    assert await finder.poll() == {peer.epoch}


async def test_a_worker_of_another_version_is_named_once_and_greeted_ever_more_seldom(
    finder: Finder, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each greeting is really answered; the time between two greetings is what the gateway is told."""
    caplog.set_level(logging.INFO, "baton.gateway")
    later = 0.0
    for module in ("discovery", "connection"):
        monkeypatch.setattr(
            f"gateway.workers.{module}.time", SimpleNamespace(monotonic=lambda: time.monotonic() + later)
        )
    monkeypatch.setattr("gateway.workers.discovery.random", SimpleNamespace(uniform=lambda least, most: most))
    peer.faults["version"] = VERSION + 1

    def left() -> bool:
        finder.discovery.look()
        return not finder.known()

    pauses = []
    for _ in range(6):
        assert await finder.poll() == {peer.epoch}
        await until(left, "the worker of another version to be left")
        began = later
        await peer.beat()
        while not await finder.poll():
            later += 0.5
            await peer.beat()
        pauses.append(later - began)
    expected = [2.0, 4.0, 8.0, 16.0, MAX_FOREIGN_S, MAX_FOREIGN_S]
    assert all(abs(pause - wanted) <= 1.0 for pause, wanted in zip(pauses, expected, strict=True)), pauses
    said = [record.getMessage() for record in caplog.records if peer.epoch in record.getMessage()]
    assert said == [
        f"found decode worker {peer.epoch} at {peer.record.address}",
        f"decode worker {peer.epoch} speaks protocol version {VERSION + 1}, this gateway {VERSION}: it is not used",
    ]
    await publish(finder.store, SIGNER, like(peer, "next life", peer.record.address), time.time())
    assert "next life" in await finder.poll(), "the next life is tried at once"


async def test_workers_of_other_weights_are_named_once(
    finder: Finder, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    other = structs.replace(like(peer, "int4", "tcp://127.0.0.1:1"), role="prefill", content="i", quantization="int4")
    await publish(finder.store, SIGNER, other, time.time())
    for _ in range(3):
        await finder.poll()
    (said,) = [record.getMessage() for record in caplog.records if "no KV passes" in record.getMessage()]
    assert f"prefill worker int4 and decode worker {peer.epoch}: --quantization int4 does not go with none" in said


async def test_workers_with_kv_in_another_format_are_named_once(
    finder: Finder, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    other = structs.replace(like(peer, "fp8", "tcp://127.0.0.1:1"), role="prefill", kv_dtype="fp8")
    await publish(finder.store, SIGNER, other, time.time())
    for _ in range(3):
        await finder.poll()
    said = [record.getMessage() for record in caplog.records if "none passes between them" in record.getMessage()]
    assert len(said) == 1 and "fp8" in said[0] and peer.epoch in said[0]
