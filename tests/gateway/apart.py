"""Runs a peer on an event loop of its own, in a thread: what a test's loop is busy with makes it no silent worker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from contracts.messages.job import AnyJob
from infra.redis.records import Role
from infra.redis.worker_load import WorkerLoad
from tests.gateway.peer import Peer
from tests.waiting import DEADLINE_S


@asynccontextmanager
async def peer_apart(
    role: Role,
    redis_url: str,
    secret: bytes,
    model: Path,
    answer: Callable[[AnyJob, int], list[int]],
    load: WorkerLoad | None = None,
) -> AsyncIterator[None]:
    """Runs a peer, which reports `load`, until the context ends. Raises what it raises."""
    ready, over = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        peer = await Peer(role, redis_url, secret, str(model), answer).start()
        peer.load = load or peer.load
        await peer.beat()
        ready.set()
        try:
            await over.wait()
        finally:
            await peer.die()

    running = asyncio.create_task(asyncio.to_thread(asyncio.run, serve()))
    try:
        assert await asyncio.to_thread(ready.wait, DEADLINE_S), "the peer did not start"
        yield
    finally:
        if loops:
            loops[0].call_soon_threadsafe(over.set)
        await asyncio.wait_for(running, DEADLINE_S)
