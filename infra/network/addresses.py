"""The parts of a process's bound sockets: context, secret, keys, gatekeeper, and the addresses to bind."""

from dataclasses import dataclass, field

import zmq.asyncio

from infra.network.bind_address import LOOPBACK_ADDRESS, BindAddress
from infra.network.curve_keys import CurveKeys
from infra.network.gatekeeper import Gatekeeper


@dataclass(frozen=True, slots=True)
class Network:
    """The socket context of one life of a worker. Needs a running event loop."""

    context: zmq.asyncio.Context
    secret: bytes = field(repr=False)
    keys: CurveKeys
    gatekeeper: Gatekeeper
    bind: BindAddress = LOOPBACK_ADDRESS

    @classmethod
    def of(cls, secret: bytes, bind: BindAddress = LOOPBACK_ADDRESS) -> "Network":
        """Makes a network with its own context. Raises `BatonError` if ZeroMQ has no CURVE."""
        keys = CurveKeys.of(secret)
        context = zmq.asyncio.Context(io_threads=1)
        return cls(context, secret, keys, Gatekeeper(context, keys), bind)

    async def close(self) -> None:
        """Closes the context. All sockets but the gatekeeper's must be closed."""
        await self.gatekeeper.close()
        self.context.term()

    async def destroy(self) -> None:
        await self.gatekeeper.close()
        self.context.destroy(0)
