"""Bounds of the sockets."""

import zmq
import zmq.asyncio

from core.sockets import dealer, router


async def test_libzmq_sends_no_heartbeats() -> None:
    """With them it aborts the process when a peer goes away while its queue here is full."""
    with zmq.asyncio.Context() as context:
        bound, endpoint = router(context, "127.0.0.1")
        connected = dealer(context, endpoint)
        for each in (bound, connected):
            assert each.getsockopt(zmq.HEARTBEAT_IVL) == 0
            assert each.getsockopt(zmq.TCP_KEEPALIVE) == 1
            each.close(0)
