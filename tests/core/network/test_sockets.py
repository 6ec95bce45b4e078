"""Bounds of the sockets."""

import zmq

from core.network.sockets import dealer, router
from tests.network import KEYS, guarded


async def test_libzmq_sends_no_heartbeats() -> None:
    """With them it aborts the process when a peer goes away while its queue here is full."""
    async with guarded() as network:
        bound, endpoint = router(network.context, "127.0.0.1", KEYS)
        connected = dealer(network.context, endpoint, KEYS)
        for each in (bound, connected):
            assert each.getsockopt(zmq.HEARTBEAT_IVL) == 0
            assert each.getsockopt(zmq.TCP_KEEPALIVE) == 1
            each.close(0)
