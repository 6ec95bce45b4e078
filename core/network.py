"""What a process that binds sockets makes them from: a context, the deployment's secret and its keys, a gatekeeper."""

from dataclasses import dataclass, field

import zmq.asyncio

from core.curve_keys import CurveKeys
from core.gatekeeper import Gatekeeper


@dataclass(frozen=True, slots=True)
class Network:
    """Of one life of a worker. Made inside a running event loop."""

    context: zmq.asyncio.Context
    secret: bytes = field(repr=False)
    keys: CurveKeys
    gatekeeper: Gatekeeper

    @classmethod
    def of(cls, secret: bytes) -> "Network":
        """With a context of its own. Raises `BatonError` where ZeroMQ has no CURVE."""
        keys = CurveKeys.of(secret)
        context = zmq.asyncio.Context(io_threads=1)
        return cls(context, secret, keys, Gatekeeper(context, keys))

    async def close(self) -> None:
        """After all other sockets."""
        await self.gatekeeper.close()
        self.context.term()

    async def destroy(self) -> None:
        """With the sockets that are still open."""
        await self.gatekeeper.close()
        self.context.destroy(0)
