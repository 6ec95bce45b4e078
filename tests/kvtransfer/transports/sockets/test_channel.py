"""KV over several TCP connections of a link: whole and in order, sealed or not; one that ends ends the link."""

import os
import socket

import pytest
from msgspec.structs import replace

from kvtransfer.events import Closed, Landed
from kvtransfer.transports.sockets.channel import SocketChannel
from tests.kvtransfer.meddler import Frames, Meddler
from tests.kvtransfer.pair import CONFIG, DECODE, Pair, pair, until

SEVERAL = {
    "sealed": {"kv_transport": "tcp", "link_connections": 3},
    "clear": {"kv_transport": "tcp", "link_connections": 3, "kv_security": "none"},
}


def channel_of(both: Pair) -> SocketChannel:
    channel = both.outbound._links[DECODE].channel
    assert isinstance(channel, SocketChannel)
    return channel


def cut_one(port: int) -> None:
    """Ends one of this process's TCP connections to a port, as a router on the way would."""
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.family == socket.AF_INET and found.getpeername()[1] == port:
                    found.shutdown(socket.SHUT_RDWR)
                    return
        except OSError:
            continue  # no socket, or none that is connected
    raise AssertionError(f"no connection to port {port}")


async def passed(both: Pair, number: int, blocks: list[int]) -> None:
    both.run(number, blocks)
    await both.unpinned(number)
    assert both.of(Closed)[-1].outcome == "accepted", both.of(Closed)[-1].reason


@pytest.mark.parametrize("how", SEVERAL)
async def test_payloads_take_all_connections_and_land_as_they_were(how: str) -> None:
    async with pair(SEVERAL[how]) as both:
        await passed(both, 0, [200])
        channel = channel_of(both)
        assert len(channel.connections) == 3 and channel.sealed == (how == "sealed")
        took = [Meddler(both.outbound._links[DECODE], {}, at=at) for at in range(3)]
        for number in range(1, 5):
            await passed(both, number, list(range(number * 40, number * 40 + 32)))
        assert all(both.equal(number) for number in range(1, 5))
        assert all(each.passed for each in took)
        assert both.outbound.links()[0].transport == "tcp" and not both.inbound.refused


@pytest.mark.parametrize("how", SEVERAL)
async def test_a_payload_that_comes_late_is_waited_for(how: str) -> None:
    async with pair(SEVERAL[how]) as both:
        await passed(both, 0, [200])
        late: list[Frames] = []

        def hold(frames: Frames) -> list[Frames]:
            late.append(frames)
            return []

        meddler = Meddler(both.outbound._links[DECODE], {0: hold})
        both.run(1, list(range(40, 72)))
        (session,) = [session for session, _ in both.inbound._sessions._by_link.values()]
        order = session._order
        assert order is not None
        await until(lambda: len(order._held) > 2, "nothing came over the other connections")
        assert late and not both.of(Landed)[1:]
        meddler.send_multipart(late[0])
        await both.unpinned(1)
        assert both.of(Closed)[-1].outcome == "accepted" and both.equal(1)


@pytest.mark.parametrize("how", SEVERAL)
async def test_a_lost_connection_is_a_lost_link(how: str) -> None:
    """What was under way there is waited for by what came over the others, so nothing else could pass."""
    async with pair(SEVERAL[how], replace(CONFIG, silence=60.0)) as both:  # silence is not what ends it
        await passed(both, 0, [200])
        both.granting = False
        both.open(1, [1, 2])
        await until(lambda: both.asking() == {1}, "the second handoff is not open")
        cut_one(both.inbound._payload_sockets.port)
        await both.unpinned(1)
        assert both.of(Closed)[-1].reason == "connection_lost"
        both.granting = True
        await passed(both, 2, [3, 4])  # over a new link
        assert both.equal(2) and len(both.of(Landed)) == 2


async def test_a_payload_that_is_lost_holds_the_others_for_no_longer_than_the_link_lasts() -> None:
    async with pair(SEVERAL["sealed"], replace(CONFIG, silence=1.0, verify_deadline=0.3)) as both:
        await passed(both, 0, [200])
        Meddler(both.outbound._links[DECODE], {0: lambda frames: []})
        number = 0
        while number < 4 and (number == 0 or both.of(Closed)[-1].outcome == "failed"):
            number += 1
            both.run(number, list(range(number * 40, number * 40 + 32)))
            await both.unpinned(number)
        assert 1 < number < 4 and both.equal(number)
