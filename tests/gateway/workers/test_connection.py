"""A connection to one worker, over real sockets."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq.asyncio
from msgspec import structs

from contracts.ids import AttemptKey
from contracts.messages.gateway import Alive, News
from gateway.workers.connection import MAX_MESSAGES_PER_TURN, MAX_TURN_S, WorkerConnection
from gateway.workers.liveness import RECONNECT_WITHIN_S, WorkerHealth
from infra.network.bind_address import LOOPBACK_ADDRESS
from infra.network.curve_keys import CurveKeys
from infra.network.gatekeeper import Gatekeeper
from infra.network.sockets import token_router
from infra.redis.records import WorkerRecord
from tests.gateway.conftest import SECRET
from tests.gateway.peer import Peer
from tests.gateway.running import until
from tests.infra.redis.test_registry import worker

GATEWAY = "a gateway"
STEP_S = 0.05  # s
WAITING_MESSAGES = 3 * MAX_MESSAGES_PER_TURN  # messages that wait to be read, without a queue being full


class Listener:
    def __init__(self) -> None:
        self.news: list[News] = []
        self.drops = 0

    def received(self, worker: WorkerConnection, news: News) -> None:
        self.news.append(news)

    def dropped(self) -> None:
        self.drops += 1

    def died(self, worker: WorkerConnection) -> None:
        raise AssertionError("nobody looks at its health here")


@asynccontextmanager
async def connected(redis_url: str, model: Path) -> AsyncIterator[tuple[Peer, WorkerConnection, Listener]]:
    peer = await Peer("decode", redis_url, SECRET.encode(), str(model), lambda *_: []).start()
    context = zmq.asyncio.Context()
    listener = Listener()
    connection = WorkerConnection(context, CurveKeys.of(SECRET.encode()), GATEWAY, peer.record, listener)

    def welcomed() -> bool:
        connection.look(time.monotonic())
        return connection.usable

    try:
        await until(welcomed, "the welcome")
        yield peer, connection, listener
    finally:
        await connection.close()
        context.term()
        await peer.die()


def alive(peer: Peer, number: int, receiver: str = GATEWAY) -> Alive:
    return Alive(sender=peer.epoch, receiver=receiver, key=AttemptKey(f"r-{number}", 0, 1), state="running")


async def test_a_burst_of_messages_gives_others_their_turns(redis_url: str, model: Path) -> None:
    async with connected(redis_url, model) as (peer, _, listener):
        for number in range(WAITING_MESSAGES):
            await peer.say(GATEWAY, alive(peer, number))  # never suspends, so nothing is read meanwhile
        turns = [0]
        while turns[-1] < WAITING_MESSAGES:
            await asyncio.sleep(0)
            turns.append(len(listener.news))
        assert max(after - before for before, after in pairwise(turns)) <= MAX_MESSAGES_PER_TURN
        assert [news.key.request for news in listener.news if isinstance(news, Alive)] == [
            f"r-{n}" for n in range(WAITING_MESSAGES)
        ]


async def test_messages_that_take_long_to_handle_give_others_their_turns(
    redis_url: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of many tokens costs as much as many others, so turns are counted by time as well."""
    async with connected(redis_url, model) as (peer, _, listener):
        now = [time.monotonic()]
        monkeypatch.setattr("gateway.workers.connection.time", SimpleNamespace(monotonic=lambda: now[0]))
        heard = listener.received

        def received(worker: WorkerConnection, news: News) -> None:
            heard(worker, news)
            now[0] += 2 * MAX_TURN_S  # more than a turn, however a difference of two times is rounded

        monkeypatch.setattr(listener, "received", received)
        for number in range(MAX_MESSAGES_PER_TURN):
            await peer.say(GATEWAY, alive(peer, number))
        turns = [0]
        while turns[-1] < MAX_MESSAGES_PER_TURN:
            await asyncio.sleep(0)
            turns.append(len(listener.news))
        assert max(after - before for before, after in pairwise(turns)) == 1


async def test_writing_gives_others_their_turns(redis_url: str, model: Path) -> None:
    async with connected(redis_url, model) as (peer, connection, _):
        for number in range(WAITING_MESSAGES):
            connection.ended(AttemptKey(f"r-{number}", 0, 1))
        waiting = [connection.waiting]
        while waiting[-1]:
            await asyncio.sleep(0)
            waiting.append(connection.waiting)
        assert max(before - after for before, after in pairwise(waiting)) <= MAX_MESSAGES_PER_TURN
        await until(lambda: len(peer.ends) == WAITING_MESSAGES, "what was written")


async def test_a_pong_tells_whether_the_engine_is_late(redis_url: str, model: Path) -> None:
    async with connected(redis_url, model) as (peer, connection, _):
        for due in (-1.0, 1.0, 0.0):
            peer.faults["step_due_ms"] = due

            def said(late: bool = due < 0) -> bool:
                connection.look(time.monotonic())
                return connection.late == late

            await until(said, f"what {due} ms mean")


async def test_a_bug_in_what_reads_is_logged_and_breaks_the_connection(
    redis_url: str, model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that it looks like a worker that is dead."""

    def bug(worker: WorkerConnection, news: News) -> None:
        raise ZeroDivisionError("a bug of the listener")

    async with connected(redis_url, model) as (peer, connection, listener):
        monkeypatch.setattr(listener, "received", bug)
        assert not connection.broken
        await peer.say(GATEWAY, alive(peer, 0))
        await until(lambda: connection.broken, "the end of its reading")
        assert peer.epoch in caplog.text and "a bug of the listener" in caplog.text and "Traceback" in caplog.text


async def test_a_worker_that_dies_is_known_by_its_socket(redis_url: str, model: Path) -> None:
    """Silence would take seconds; here no time passes but what the system needs to tell."""
    async with connected(redis_url, model) as (peer, connection, _):
        await peer.die()
        await until(lambda: connection.liveness.health is WorkerHealth.SUSPECT, "the end of the connection")
        now = time.monotonic()
        connection.look(now)
        assert not connection.usable
        seen = []
        for count in range(1, round(RECONNECT_WITHIN_S / STEP_S) + 2):
            connection.look(now + count * STEP_S)
            seen.append(connection.liveness.health)
        assert seen[0] is WorkerHealth.SUSPECT and seen[-1] is WorkerHealth.DEAD


@asynccontextmanager
async def unanswered(record: WorkerRecord) -> AsyncIterator[WorkerConnection]:
    context = zmq.asyncio.Context()
    connection = WorkerConnection(context, CurveKeys.of(SECRET.encode()), GATEWAY, record, Listener())
    try:
        yield connection
    finally:
        await connection.close()
        context.term()


async def test_a_handshake_that_is_cut_or_slow_is_no_other_secret(caplog: pytest.LogCaptureFixture) -> None:
    """So it ends where a worker dies, and where one that waits for a processor takes longer than ZeroMQ waits."""
    cut = 0

    async def cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal cut
        await reader.read(1)
        writer.close()
        cut += 1

    server = await asyncio.start_server(cut_off, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, unanswered(structs.replace(worker("far"), address=f"tcp://{host}:{port}")):
        await until(lambda: cut >= 3, "three handshakes")
    assert "secret" not in caplog.text


async def test_a_worker_that_refuses_this_gateways_key_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    ours, other = CurveKeys.of(SECRET.encode()), CurveKeys.of(b"another secret of the tests")
    context = zmq.asyncio.Context()
    gatekeeper = Gatekeeper(context, replace(ours, client_public=other.client_public))
    socket, address = token_router(context, LOOPBACK_ADDRESS, ours)

    def warnings() -> list[str]:
        return [line.getMessage() for line in caplog.records if line.name == "baton.gateway"]

    try:
        async with unanswered(structs.replace(worker("far"), address=address)):
            await until(lambda: gatekeeper.refused["key"] >= 1 and any(warnings()), "the refusal")
    finally:
        await gatekeeper.close()
        socket.close(0)
        context.term()
    (said,) = warnings()
    assert "far" in said and address in said and "--secret-file" in said
