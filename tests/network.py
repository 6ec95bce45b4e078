"""What the tests' own sockets need: a deployment's keys, and a network that admits those who have them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from infra.network.addresses import Network
from infra.network.curve_keys import CurveKeys

SECRET = b"the secret of the tests' deployment"
KEYS = CurveKeys.of(SECRET)


@asynccontextmanager
async def guarded() -> AsyncIterator[Network]:
    """A network of that deployment; its end never waits for a socket that a failed test left open."""
    network = Network.of(SECRET)
    try:
        yield network
    finally:
        await network.destroy()
