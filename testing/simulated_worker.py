"""Answers as a decode worker does, over the real queue, sockets and ledger, with an engine that makes tokens up.

A process in real time that measures gateways, and no part of `simulation/`: it has no blocks and costs, only a pace.
`benchmarks.front` starts it as a file, with the modules of the checkout that is measured. Each sequence gets one token
a step. On SIGTERM it writes when each token of each request was made.
"""

import argparse
import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from contracts.ids import AttemptKey
from contracts.messages.gateway import (
    Alive,
    Ask,
    Cancel,
    Emitted,
    Ended,
    Failed,
    FromWorker,
    Hello,
    Piece,
    Ping,
    Pong,
    Question,
    Stages,
    Started,
    Tokens,
    Wanted,
    Welcome,
)
from contracts.messages.job import AnyJob
from infra.network.sealing import load_secret
from infra.redis.worker_load import WorkerLoad
from testing.worker_endpoint import WorkerEndpoint
from worker.gateways.bodies import MissingPrompt, PromptBodies
from worker.gateways.ledger import AttemptArrival, Ledger

MAX_MESSAGE_TOKENS = 256  # as a worker's
FULL_QUEUE_RETRY_S = 0.002
HEARTBEAT_S = 1.0
JOB_WAIT_MS = 500


class PacedWorker:
    """One life of a worker whose steps begin `phase` s after whole multiples of `pause` s."""

    def __init__(self, redis: str, secret: bytes, model: str, token: int, pause: float, phase: float) -> None:
        self._token, self._pause, self._phase = token, pause, phase
        self._endpoint = WorkerEndpoint("decode", redis, secret, model, load=WorkerLoad(blocks_total=1 << 20))
        self._ledger = Ledger()
        self._bodies = PromptBodies()
        self._running: dict[AttemptKey, tuple[int, int]] = {}  # next output index, and the end
        self._waiting: set[str] = set()  # gateways whose queue was full
        self.made: dict[str, list[float]] = {}  # when each token was made, monotonic s, by request

    async def run(self) -> None:
        await self._endpoint.open()
        await asyncio.gather(self._beat(), self._take(), self._listen(), self._step())

    async def _beat(self) -> None:
        while True:
            await self._endpoint.beat()
            await asyncio.sleep(HEARTBEAT_S)

    async def _take(self) -> None:
        while True:
            for job in await self._endpoint.queue.take(64, JOB_WAIT_MS):
                self._begin(job)

    def _begin(self, job: AnyJob) -> None:
        self._say(job.sender, Started, request=job.request, attempt=job.attempt, samples=job.samples)
        begun = [self._ledger.begin(key, job.sender, job.emitted, job.deadline)[0] for key in job.attempts()]
        if AttemptArrival.NEW not in begun:
            return
        if job.body is None:
            self._run(job)
        else:
            self._bodies.add(job)
            self._want()

    def _want(self) -> None:
        for job, first in self._bodies.due(time.monotonic()):
            name = {"request": job.request, "attempt": job.attempt, "samples": job.samples}
            self._say(job.sender, Wanted, **name, first=first)

    def _arrived(self, piece: Piece) -> None:
        job = self._bodies.take(piece, time.monotonic())
        assert not isinstance(job, MissingPrompt), "a gateway sends what it has promised"
        if job is not None:
            self._run(job)
        self._want()

    def _run(self, job: AnyJob) -> None:
        for key in job.attempts():
            if self._ledger.lives(key):
                self._running[key] = (job.emitted, job.limits.max_tokens)
                self.made[key.request] = []
        if self._pause <= 0:
            self._advance()  # a worker that has nothing else to do answers at once

    async def _listen(self) -> None:
        while True:
            message = await self._endpoint.receive()
            match message:
                case Hello():
                    self._say(message.sender, Welcome)
                case Ping(number=number):
                    self._say(
                        message.sender, Pong, number=number, steps=0, step_due_ms=0.0, taken=self._endpoint.queue.taken
                    )
                case Cancel(key=key):
                    living = self._ledger.cancel(key, time.time())
                    self._running.pop(key, None)
                    self._say(message.sender, Failed, key=key, reason="cancelled" if living else "unknown")
                case Ask(asked=asked):
                    for one in asked:
                        self._asked(message.sender, one)
                case Piece():
                    self._arrived(message)
                case Ended(key=key):
                    self._ledger.acknowledged(key)

    def _asked(self, gateway: str, asked: Question) -> None:
        entry = self._ledger.ask(asked.key, asked.next_index)
        if entry is None:
            self._say(gateway, Failed, key=asked.key, reason="unknown", retryable=True)
        elif entry.owed():
            self._send(gateway)
        else:
            self._say(gateway, Alive, key=asked.key, state="running")

    async def _step(self) -> None:
        while self._pause <= 0:
            await asyncio.sleep(1.0)  # sequences end where they begin
        while True:
            now = time.monotonic()
            due = ((now - self._phase) // self._pause + 1) * self._pause + self._phase
            await asyncio.sleep(max(0.0, due - now))
            self._advance()

    def _advance(self) -> None:
        now = time.monotonic()
        count = 1 if self._pause > 0 else 1 << 30
        for key, (index, end) in list(self._running.items()):
            until = min(index + count, end)
            stages = Stages(queue_ms=1.5, prefill_ms=2.5) if index == 0 else None
            finish: Any = "length" if until == end else None
            self._ledger.emit(Emitted(key, index, [self._token] * (until - index), finish, stages))
            self.made[key.request] += [now] * (until - index)
            if finish is None:
                self._running[key] = (until, end)
            else:
                del self._running[key]
        for gateway in list(self._ledger.gateways()):
            self._send(gateway)

    def _send(self, gateway: str) -> None:
        self._waiting.discard(gateway)
        while emitted := self._ledger.owed(gateway, MAX_MESSAGE_TOKENS):
            if not self._say(gateway, Tokens, emitted=emitted):
                if gateway not in self._waiting:
                    self._waiting.add(gateway)
                    asyncio.get_running_loop().call_later(FULL_QUEUE_RETRY_S, self._send, gateway)
                return
            self._ledger.sent(emitted)

    def _say(self, gateway: str, kind: type[FromWorker], **fields: Any) -> bool:
        return self._endpoint.send_now(gateway, kind(sender=self._endpoint.epoch, receiver=gateway, **fields))


async def serve(options: argparse.Namespace) -> None:
    secret = load_secret(str(options.secret_file))
    worker = PacedWorker(options.redis, secret, options.model, options.token, options.pause, options.phase)
    running = asyncio.ensure_future(worker.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        options.made.write_bytes(msgspec.msgpack.encode(worker.made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", required=True)
    parser.add_argument("--secret-file", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--token", type=int, required=True, help="id of the token that every answer consists of")
    parser.add_argument("--pause", type=float, required=True, help="s between steps; 0: answers come at once, whole")
    parser.add_argument("--phase", type=float, default=0.0, help="s by which the steps are shifted")
    parser.add_argument("--made", type=Path, required=True, help="file for when each token was made")
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
