"""What the tests' own sockets need: a deployment's keys, and a context that admits those who have them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import zmq.asyncio

from core.gatekeeper import Gatekeeper
from core.link_keys import LinkKeys

KEYS = LinkKeys.of(b"the secret of the tests' deployment")


@asynccontextmanager
async def guarded() -> AsyncIterator[zmq.asyncio.Context]:
    """A context with a gatekeeper; never waits for a socket that a failed test left open."""
    context = zmq.asyncio.Context()
    gatekeeper = Gatekeeper(context, KEYS)
    try:
        yield context
    finally:
        await gatekeeper.close()
        context.destroy(0)
