"""Only the deployment's own peers connect; whoever else tries harms nobody and is counted."""

import asyncio
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from infra.network.bind_address import LOOPBACK_ADDRESS
from infra.network.curve_keys import CurveKeys
from infra.network.gatekeeper import LOG_INTERVAL_S, UNEXPECTED_PEER, Gatekeeper
from infra.network.sockets import dealer, payload_dealer, payload_ipc_router, payload_router, router
from tests.waiting import DEADLINE_S

KEYS, OTHERS = CurveKeys.of(b"the deployment's secret"), CurveKeys.of(b"another deployment's secret")
PATIENCE_S = 0.1  # s until the next of such peers comes
MakeDealer = Callable[[zmq.asyncio.Context, str], zmq.asyncio.Socket]


class House:
    """A context with a gatekeeper whose clock stands still, and a control and a payload socket."""

    def __init__(self) -> None:
        self.now = 0.0
        self.context = zmq.asyncio.Context()
        self.gatekeeper = Gatekeeper(self.context, KEYS, lambda: self.now)
        self.control, self.control_address = router(self.context, LOOPBACK_ADDRESS, KEYS)
        self.payload, self.payload_address = payload_router(self.context, LOOPBACK_ADDRESS)
        for socket in (self.control, self.payload):
            self.gatekeeper.watch(socket)

    async def close(self) -> None:
        """The gatekeeper may go before the sockets that it watches."""
        await self.gatekeeper.close()
        self.control.close(0)
        self.payload.close(0)
        self.context.destroy(0)  # a failed test may have left a socket open


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    await house.close()


@asynccontextmanager
async def visitor(make: MakeDealer, address: str) -> AsyncIterator[zmq.asyncio.Socket]:
    context = zmq.asyncio.Context()
    socket = make(context, address)
    try:
        yield socket
    finally:
        socket.close(0)
        context.term()


async def passes(house: House, socket: zmq.asyncio.Socket, at: zmq.asyncio.Socket) -> zmq.Frame:
    """Sends both ways; returns the frame that the house received."""
    async with asyncio.timeout(DEADLINE_S):
        await socket.send(b"ping")  # waits for the connection
        identity, frame = await at.recv_multipart(copy=False)
        assert frame.bytes == b"ping"
        await at.send_multipart([identity.bytes, b"pong"])
        assert await socket.recv() == b"pong"
    return frame


@asynccontextmanager
async def refused(house: House, make: MakeDealer, address: str, reason: str) -> AsyncIterator[zmq.asyncio.Socket]:
    """A peer of this kind that was refused, for this reason and no other.

    Of two ends that differ in the kind of their security, the first to see it goes for good, and the house counts what
    it sees itself. So such peers come until it has seen one.
    """
    before, end = dict(house.gatekeeper.refused), time.monotonic() + DEADLINE_S
    while house.gatekeeper.refused == before:
        assert time.monotonic() < end, f"nobody was refused for {reason}"
        async with visitor(make, address) as socket:
            until = time.monotonic() + PATIENCE_S
            while house.gatekeeper.refused == before and time.monotonic() < until:
                await asyncio.sleep(0.001)
            if house.gatekeeper.refused != before:
                yield socket
    grown = {reason for reason, count in house.gatekeeper.refused.items() if count > before[reason]}
    assert grown == {reason}


def control(keys: CurveKeys) -> MakeDealer:
    return lambda context, address: dealer(context, address, keys)


def payload(user: str, token: str) -> MakeDealer:
    return lambda context, address: payload_dealer(context, address, user.encode(), user, token)


def plain_text(context: zmq.asyncio.Context, address: str) -> zmq.asyncio.Socket:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.connect(address)
    return socket


async def test_who_has_the_secret_is_admitted(house: House) -> None:
    async with visitor(control(KEYS), house.control_address) as socket:
        await passes(house, socket, house.control)
    assert not any(house.gatekeeper.refused.values())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (control(OTHERS), "handshake"),
        (control(replace(OTHERS, server_public=KEYS.server_public)), "key"),  # the binding end's key got out
        (control(replace(KEYS, client_public=KEYS.server_public, client_secret=KEYS.server_secret)), "key"),
        (plain_text, "handshake"),
        (payload("somebody", "a token"), "handshake"),
    ],
    ids=["another secret", "a key of its own", "the wrong end's key", "no CURVE", "PLAIN"],
)
async def test_who_has_not_is_refused_and_cannot_send(house: House, make: MakeDealer, reason: str) -> None:
    async with (
        refused(house, make, house.control_address, reason) as stranger,
        visitor(control(KEYS), house.control_address) as peer,
    ):
        with pytest.raises(zmq.Again):
            await stranger.send(b"let me in", zmq.NOBLOCK)
        await passes(house, peer, house.control)


async def test_nobody_is_admitted_without_a_gatekeeper() -> None:
    context = zmq.asyncio.Context()
    socket, address = router(context, LOOPBACK_ADDRESS, KEYS)
    failed = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
    async with asyncio.timeout(DEADLINE_S), visitor(control(KEYS), address):
        await failed.recv_multipart()
    socket.disable_monitor()
    failed.close(0)
    socket.close(0)
    context.term()


async def test_an_expected_user_is_admitted_with_its_token_and_known_by_name(house: House) -> None:
    house.gatekeeper.expect("link-1", "token-1")
    async with visitor(payload("link-1", "token-1"), house.payload_address) as socket:
        frame = await passes(house, socket, house.payload)
        assert frame.get("User-Id") == "link-1"
        house.gatekeeper.forget("link-1")
        await passes(house, socket, house.payload)  # what stands is not cut
    assert not any(house.gatekeeper.refused.values())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (payload("link-1", "token-2"), "token"),  # another link's
        (payload("link-1", "token"), "token"),
        (payload("link-3", "token-1"), "user"),
        (payload("forgotten", "token"), "user"),
        (control(KEYS), "handshake"),
        (plain_text, "handshake"),
    ],
    ids=["another link's token", "half a token", "another name", "forgotten", "CURVE", "no PLAIN"],
)
async def test_other_users_are_refused(house: House, make: MakeDealer, reason: str) -> None:
    for user, token in (("link-1", "token-1"), ("link-2", "token-2"), ("forgotten", "token")):
        house.gatekeeper.expect(user, token)
    house.gatekeeper.forget("forgotten")
    async with (
        refused(house, make, house.payload_address, reason) as stranger,
        visitor(payload("link-1", "token-1"), house.payload_address) as peer,
    ):
        with pytest.raises(zmq.Again):
            await stranger.send(b"let me in", zmq.NOBLOCK)
        await passes(house, peer, house.payload)


async def test_sockets_of_a_host_ask_as_well(house: House, tmp_path: Path) -> None:
    house.gatekeeper.expect("link-1", "token-1")
    socket, address = payload_ipc_router(house.context, tmp_path / "kv")
    house.gatekeeper.watch(socket)
    async with (
        refused(house, payload("link-1", "x"), address, "token"),
        visitor(payload("link-1", "token-1"), address) as peer,
    ):
        await passes(house, peer, socket)
    socket.close(0)  # before the gatekeeper


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + bytes(1) + bytes(31)


def nonsense(choice: random.Random) -> bytes:
    """Bytes that fail at every stage of a handshake."""
    hello = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + os.urandom(120)
    initiate = b"\x04\xff\x08INITIATE" + os.urandom(246)
    start = choice.choice([b"", GREETING[: choice.randrange(64)], GREETING, GREETING + hello, GREETING + initiate])
    return start + choice.randbytes(choice.randrange(300))


async def test_nonsense_harms_nobody(house: House) -> None:
    host, _, port = house.control_address.removeprefix("tcp://").rpartition(":")
    choice = random.Random(7)
    async with visitor(control(KEYS), house.control_address) as before:
        await passes(house, before, house.control)
        for _ in range(100):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(nonsense(choice))
            writer.close()
        while house.gatekeeper.refused["handshake"] < 20:
            await asyncio.sleep(0.001)
        await passes(house, before, house.control)
    async with visitor(control(KEYS), house.control_address) as after:
        await passes(house, after, house.control)
    assert set(house.gatekeeper.refused) == {"handshake", "key", "user", "token", "mechanism"}, "bounded by reasons"
    assert len(house.gatekeeper.tasks) == 1 + 2, "it serves, and watches both sockets"


async def test_the_log_has_a_sentence_a_minute(house: House, caplog: pytest.LogCaptureFixture) -> None:
    async def one(wrong: MakeDealer, address: str, reason: str) -> str:
        caplog.clear()
        async with refused(house, wrong, address, reason):
            pass
        return caplog.text

    unexpected = (payload("link-1", "no token"), house.payload_address, "user")
    caplog.set_level(logging.DEBUG)
    first = await one(*unexpected)
    assert "127.0.0.1" in first and UNEXPECTED_PEER in first and "1 refused" in first
    assert await one(*unexpected) == ""
    house.now += LOG_INTERVAL_S
    assert "--secret-file" in await one(control(OTHERS), house.control_address, "handshake")
    assert "no token" not in first


async def test_it_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    for close_first in (True, False):
        house = House()
        async with visitor(control(KEYS), house.control_address) as socket:
            await passes(house, socket, house.control)
        if close_first:
            house.control.close(0)
        await house.close()
    assert asyncio.all_tasks() == before
