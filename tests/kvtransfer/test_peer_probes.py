"""A decode worker that cannot be connected to is named once, and again when it is over; nothing waits for it."""

import pytest

from contracts.messages.gateway import REASON_UNREACHED
from infra.network.bind_address import LOOPBACK_ADDRESS
from infra.network.listening import listen
from infra.network.probing import obstacle
from infra.network.sockets import router
from infra.redis.records import UnreachedPeer
from kvtransfer.events import Closed
from tests.kvtransfer.pair import DECODE, PREFILL, pair, until
from tests.network import KEYS

SOON = {"silence": 0.1, "kv_transport": "tcp"}


def free_port() -> int:
    with listen("127.0.0.1", 0) as listener:
        port: int = listener.getsockname()[1]
        return port


async def test_a_pair_that_cannot_connect_is_said_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "baton.handoff"):
        async with pair(SOON) as both:
            port = free_port()
            address = f"tcp://127.0.0.1:{port}"
            both.open(1, [1], decode_address=address)
            await until(lambda: both.of(Closed), "the handoff does not end")
            assert (both.of(Closed)[0].reason, both.of(Closed)[0].retryable) == (REASON_UNREACHED, True)
            assert both.outbound.unreached() == (UnreachedPeer(DECODE, address),)
            both.open(2, [2], decode_address=address)
            assert [closed.reason for closed in both.of(Closed)] == [REASON_UNREACHED] * 2  # at once
            socket, _ = router(both.network.context, LOOPBACK_ADDRESS._replace(ports=range(port, port + 1)), KEYS)
            await until(lambda: not both.outbound.unreached(), "it is not seen to be over")
            socket.close(0)
    said = [record.getMessage() for record in caplog.records if "connect to" in record.getMessage()]
    assert len(said) == 2
    assert said[0].startswith(f"prefill worker {PREFILL} at 127.0.0.1 cannot connect to decode worker {DECODE} at tcp:")
    assert said[0].endswith("Connection refused") and said[1].endswith("again")


async def test_a_port_for_payloads_that_cannot_be_connected_to_is_named() -> None:
    """Messages pass, so a Grant comes; without the port's own test nothing would say why no payload ever arrives."""
    async with pair(SOON) as both:
        sockets = both.inbound._payload_sockets
        port, sockets.port = sockets.port, free_port()
        both.run(1, [1])
        await until(lambda: both.of(Closed), "the handoff does not end")
        assert both.of(Closed)[0].reason == REASON_UNREACHED
        assert both.outbound.unreached() == (UnreachedPeer(DECODE, f"tcp://127.0.0.1:{sockets.port}"),)
        assert sockets.port != port


async def test_who_can_be_connected_to_hears_nothing_of_the_test(caplog: pytest.LogCaptureFixture) -> None:
    async with pair(SOON) as both:
        address = both.inbound.handoff_address
        assert await obstacle(address, 5.0) == ""
        both.run(1, [1])
        await until(lambda: both.of(Closed), "the handoff does not end")
        assert both.of(Closed)[0].outcome == "accepted"
        assert set(both.network.gatekeeper.refused.values()) == {0} and not both.outbound.unreached()
    assert not caplog.records
