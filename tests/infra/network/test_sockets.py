"""Bounds of the sockets, and the addresses and ports that they take."""

import asyncio

import pytest
import zmq

from contracts.errors import ConfigError
from infra.network.bind_address import LOOPBACK_ADDRESS, BindAddress, endpoint
from infra.network.listening import listen
from infra.network.sockets import dealer, router, send_now
from tests.network import KEYS, guarded
from tests.waiting import DEADLINE_S


async def test_libzmq_sends_no_heartbeats() -> None:
    """With them it aborts the process when a peer goes away while its queue here is full."""
    async with guarded() as network:
        bound, address = router(network.context, LOOPBACK_ADDRESS, KEYS)
        connected = dealer(network.context, address, KEYS)
        for each in (bound, connected):
            assert each.getsockopt(zmq.HEARTBEAT_IVL) == 0
            assert each.getsockopt(zmq.TCP_KEEPALIVE) == 1
            each.close(0)


@pytest.mark.parametrize(
    ("bind", "host"),
    [
        (BindAddress("::1", "::1"), "::1"),
        (BindAddress("::", "::1"), "::1"),
        (BindAddress("::", "127.0.0.1"), "127.0.0.1"),
    ],
)
async def test_messages_pass_over_ipv6_and_to_both_where_all_is_listened_on(bind: BindAddress, host: str) -> None:
    async with guarded() as network:
        bound, address = router(network.context, bind, KEYS)
        assert address == endpoint(host, address.rpartition(":")[2])
        connected = dealer(network.context, address, KEYS)
        async with asyncio.timeout(DEADLINE_S):
            while not send_now(connected, [b"over"]):
                await asyncio.sleep(0.001)
            assert (await bound.recv_multipart())[1:] == [b"over"]
        for each in (bound, connected):
            each.close(0)


async def test_each_socket_takes_the_next_free_port_of_the_range() -> None:
    with listen("127.0.0.1", 0) as taken:
        first = taken.getsockname()[1]
        bind = LOOPBACK_ADDRESS._replace(ports=range(first, min(first + 50, 1 << 16)))
        async with guarded() as network:
            bound = [router(network.context, bind, KEYS) for _ in range(2)]
            ports = [int(address.rpartition(":")[2]) for _, address in bound]
            assert first < ports[0] < ports[1] < first + 50
            with pytest.raises(ConfigError, match=f"--ports: '{first}-{first}': other processes have taken all"):
                router(network.context, LOOPBACK_ADDRESS._replace(ports=range(first, first + 1)), KEYS)
            for socket, _ in bound:
                socket.close(0)
