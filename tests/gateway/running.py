"""A gateway under test: the real application on a real uvicorn, with peers in place of workers that compute."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai

from contracts.messages.job import AnyJob
from gateway.service import Gateway
from gateway.text.tokenizer import ModelTokenizer
from gateway.web.server import HTTPServer
from infra.config.gateway import GatewayConfig
from infra.config.store import StoreConfig
from infra.network.listening import listen, url_of
from infra.network.tls import certificate
from infra.process.status import StatusFile
from infra.redis.clients import Store, connect
from infra.redis.records import FinishedRecord, Role
from infra.redis.registry import FINISHED_KEY
from tests.gateway.peer import Peer, introduce
from tests.plain_http import PLAIN
from tests.waiting import DEADLINE_S

TEXT = "Hello, world! 🙂 The quick brown fox jumps over the lazy dog. Fine, thank you."


async def until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE_S) -> None:
    """Returns when `condition` is true; fails the test with `what` when it does not become so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        await asyncio.sleep(0.005)


class Running:
    def __init__(self, gateway: Gateway, url: str, redis: str, model: Path, secret: bytes) -> None:
        self.gateway = gateway
        self.url = url
        self.tokenizer = ModelTokenizer(model)
        self.store: Store = connect(redis)
        self.peers: list[Peer] = []
        self.text = TEXT
        self.texts: dict[int, str] = {}
        self.client = httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, verify=PLAIN)
        plain = openai.DefaultAsyncHttpxClient(verify=PLAIN)
        self.openai = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S, http_client=plain
        )
        self._redis, self._model, self._secret = redis, model, secret

    def answer(self, job: AnyJob, sample: int) -> list[int]:
        text = self.texts.get(sample, self.text)
        return [*self.tokenizer.encode(text, special=False), self.tokenizer.stop_ids[0]]

    async def add(self, role: Role, **faults: Any) -> Peer:
        """One more worker, known to the gateway when this returns."""
        peer = await Peer(role, self._redis, self._secret, str(self._model), self.answer, **faults).start()
        self.peers.append(peer)
        introduce(self.peers)

        await self.gateway.discovery.poll()

        def usable() -> bool:
            worker = self.gateway.workers.get(peer.epoch)
            return worker is not None and worker.usable

        await until(usable, f"the gateway to know the {role} peer")
        return peer

    def peer(self, role: Role) -> Peer:
        return next(peer for peer in self.peers if peer.role == role)

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def chat(self, **more: Any) -> httpx.Response:
        return await self.post("/v1/chat/completions", messages=[{"role": "user", "content": "Hi!"}], **more)

    async def jobs(self) -> int:
        """Jobs that ever reached a peer or wait for one."""
        waiting = [await self.store.xlen(key) for key in await self.store.keys("baton:jobs:*")]
        return sum(waiting) + sum(len(peer.jobs) for peer in self.peers)

    async def finished(self, count: int) -> list[FinishedRecord]:
        """The records of requests that ended, as soon as there are so many."""
        end = time.monotonic() + DEADLINE_S
        while True:
            entries: Any = await self.store.xrange(FINISHED_KEY)
            if len(entries) >= count:
                return [msgspec.json.decode(fields[b"json"], type=FinishedRecord) for _, fields in entries]
            assert time.monotonic() < end, f"{len(entries)} of {count} records"
            await asyncio.sleep(0.02)

    async def idle(self) -> None:
        """Returns when neither the gateway nor any peer holds anything."""
        await until(lambda: not len(self.gateway.requests), "no request in progress")
        await until(lambda: not any(peer.holding for peer in self.peers), "the peers to hold nothing")

    async def close(self) -> None:
        await self.client.aclose()
        await self.openai.close()
        for peer in self.peers:
            await peer.die()
        await self.store.aclose()


Serve = Callable[..., Awaitable[Running]]


async def empty(redis: str) -> None:
    """Removes what tests before left there: records of their workers and requests live on for a while."""
    store = connect(redis)
    await store.flushall()
    await store.aclose()


@contextlib.asynccontextmanager
async def serving(redis: str, model: Path, secret_file: Path) -> AsyncIterator[Serve]:
    """A function that starts gateways with `peers` given as roles; they end with the context."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*roles: Role, at: Path = model, asked_at: str = redis, **settings: Any) -> Running:
            store = StoreConfig(redis=asked_at, secret_file=str(secret_file))
            config = GatewayConfig(model=str(at), store=store, port=0, **settings)
            listener = listen(config.host, config.port)
            tls = certificate(config.tls_cert, config.tls_key)
            gateway = Gateway(config, url_of(listener, tls is not None), StatusFile(""))
            server = HTTPServer(gateway, tls)
            task = asyncio.create_task(server.serve([listener]))
            running = Running(gateway, url_of(listener, tls is not None), redis, at, secret_file.read_bytes())

            async def end() -> None:
                await running.client.aclose()
                await running.openai.close()
                server.stop()
                await task
                await gateway.close()
                await running.close()

            stack.push_async_callback(end)
            await gateway.start()
            await until(lambda: server.started, "the server")
            for role in roles:
                await running.add(role)
            return running

        yield start
