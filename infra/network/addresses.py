"""Bundles what a process makes its bound sockets from: context, secret, keys, gatekeeper, and where others reach it."""

from dataclasses import dataclass, field

import zmq.asyncio

from infra.network.bind_address import LOOPBACK_ADDRESS, BindAddress
from infra.network.curve_keys import CurveKeys
from infra.network.gatekeeper import Gatekeeper


@dataclass(frozen=True, slots=True)
class Network:
    """Holds the sockets' context of one life of a worker. It is made inside a running event loop."""

    context: zmq.asyncio.Context
    secret: bytes = field(repr=False)
    keys: CurveKeys
    gatekeeper: Gatekeeper
    reach: BindAddress = LOOPBACK_ADDRESS

    @classmethod
    def of(cls, secret: bytes, reach: BindAddress = LOOPBACK_ADDRESS) -> "Network":
        """Makes one with a context of its own. Raises `BatonError` where ZeroMQ has no CURVE."""
        keys = CurveKeys.of(secret)
        context = zmq.asyncio.Context(io_threads=1)
        return cls(context, secret, keys, Gatekeeper(context, keys), reach)

    async def close(self) -> None:
        """Closes the context, after all sockets but the gatekeeper's are closed."""
        await self.gatekeeper.close()
        self.context.term()

    async def destroy(self) -> None:
        """Closes the context and the sockets that are still open."""
        await self.gatekeeper.close()
        self.context.destroy(0)
