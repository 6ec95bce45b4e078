"""A fake worker's own socket, job stream and registry record, all real; its user decides what it computes."""

import time
from typing import Any

import zmq.asyncio
from msgspec import structs

from contracts.ids import new_epoch
from contracts.messages.gateway import FromWorker, Hello, ToWorker, decode_to_worker
from contracts.messages.wire import encode
from infra.network.bind_address import LOOPBACK_ADDRESS
from infra.network.curve_keys import CurveKeys
from infra.network.gatekeeper import Gatekeeper
from infra.network.sealing import Sealer, Signer
from infra.network.sockets import send_now, token_router, try_send
from infra.redis.clients import connect
from infra.redis.queue import JOB_PURPOSE, JobQueue
from infra.redis.records import Role, WorkerRecord
from infra.redis.registry import RECORD_PURPOSE, publish

NO_HANDOFFS = "tcp://127.0.0.1:1"
"""Handoff address of a decode worker to which nothing is handed off."""


def fake_record(role: Role, epoch: str, model: str, **fields: Any) -> WorkerRecord:
    """Makes the record of a worker without an engine; `fields` replace its own."""
    record = WorkerRecord(
        epoch=epoch,
        role=role,
        address="",
        handoff_address=NO_HANDOFFS if role == "decode" else "",
        model=model,
        fingerprint="f" * 32,
        content="c" * 32,
        block_tokens=16,
        max_model_len=1 << 20,
        device="none",
        dtype="fp32",
        started_at=time.time(),
    )
    return structs.replace(record, **fields)


class WorkerEndpoint:
    """One life of a worker as gateways and Redis see it. Use `open` before, and `close` after."""

    def __init__(self, role: Role, redis: str, secret: bytes, model: str, **fields: Any) -> None:
        self.epoch = new_epoch()
        self.gateways: dict[str, bytes] = {}  # socket identity of each gateway that said Hello, by epoch
        self.record = fake_record(role, self.epoch, model, **fields)
        self._redis, self._secret = redis, secret

    async def open(self) -> None:
        """Binds the socket and makes the job stream; the first `beat` registers the worker."""
        keys = CurveKeys.of(self._secret)
        self._context = zmq.asyncio.Context()
        self._gatekeeper = Gatekeeper(self._context, keys)
        self._socket, address = token_router(self._context, LOOPBACK_ADDRESS, keys)
        self._store = connect(self._redis)
        self._signer = Signer(self._secret, RECORD_PURPOSE)
        self.queue = JobQueue(self._store, Sealer(self._secret, JOB_PURPOSE), self.epoch)
        self.record = structs.replace(self.record, address=address)
        await self.queue.open()

    async def beat(self, **fields: Any) -> None:
        """Publishes the record anew, with some fields replaced."""
        self.record = structs.replace(self.record, **fields)
        await self.queue.refresh()
        await publish(self._store, self._signer, self.record, time.time())

    async def receive(self) -> ToWorker:
        identity, data = await self._socket.recv_multipart()
        message = decode_to_worker(data)
        if isinstance(message, Hello):
            self.gateways[message.sender] = identity
        return message

    async def send(self, gateway: str, message: FromWorker) -> None:
        """Sends a message to a gateway, if that has said Hello."""
        if gateway in self.gateways:
            await try_send(self._socket, [self.gateways[gateway], encode(message)])

    def send_now(self, gateway: str, message: FromWorker) -> bool:
        """Sends a message at once; False where the gateway is unknown or its queue is full."""
        identity = self.gateways.get(gateway)
        return identity is not None and send_now(self._socket, [identity, encode(message)])

    async def close(self) -> None:
        """Closes everything without a message to anyone."""
        await self._gatekeeper.close()
        self._socket.close(0)
        self._context.term()
        await self._store.aclose()
