"""Floods gateways with tokens: a worker with the real I/O thread, and a loop that makes tokens up for an engine.

`python -m benchmarks.stress.flood` starts it. On SIGTERM it prints one line of JSON: what it made and sent.
"""

import argparse
import asyncio
import itertools
import signal
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import torch

from contracts.ids import AttemptKey, new_epoch
from contracts.messages.gateway import Emitted, Ping, Tokens, ToWorker, decode_from_worker, decode_to_worker
from contracts.messages.job import DecodeJob, PrefillJob
from infra.config.engine import EngineConfig
from infra.config.store import StoreConfig
from infra.config.worker import WorkerConfig
from infra.network.addresses import Network
from infra.network.sealing import load_secret
from infra.network.sockets import try_send
from infra.redis.records import HandoffCounts, KVLink, UnreachedPeer, WorkerLoad
from infra.redis.store import ServerClock
from testing.worker_endpoint import NO_HANDOFFS, fake_record
from worker.busy_page import BusyPage
from worker.engine_status import EngineStatus, PromptCounts
from worker.events import Emit
from worker.io_thread import IOThread
from worker.life import Life
from worker.mailbox import Inbox, Outbox

MAX_STEPS_BEHIND = 64  # steps that may wait for the I/O thread; then the loop waits for it


class NoTransfer:
    """Stands where a role has its handoffs: nothing is handed off here."""

    handoff_address = NO_HANDOFFS

    def handle(self, event: Any) -> None: ...

    def knows(self, key: AttemptKey) -> bool:
        return False

    def drain(self) -> None: ...

    def counts(self) -> HandoffCounts:
        return HandoffCounts()

    def links(self) -> list[KVLink]:
        return []

    def unreached(self) -> tuple[UnreachedPeer, ...]:
        return ()

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None: ...


class Sent(msgspec.Struct):
    """Counts what went to gateways, and how long no ping came from them."""

    made: int = 0  # tokens
    messages: int = 0  # of tokens, that the socket took
    entries: int = 0  # sequences in them
    tokens: int = 0
    longest: int = 0  # bytes of the longest message
    pause: float = 0.0  # s, the longest between two pings while tokens were made
    pinged: float = 0.0  # s, of the last one


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stress.flood_worker", description=__doc__)
    parser.add_argument("--redis", required=True)
    parser.add_argument("--secret-file", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=float, required=True, help="steps a second; each gives every sequence a token")
    parser.add_argument("--ready", type=Path, required=True, help="file that appears when jobs are taken")
    options = parser.parse_args()

    sent = Sent()
    watch(sent)
    config = WorkerConfig(
        engine=EngineConfig(model=options.model),
        store=StoreConfig(redis=options.redis, secret_file=options.secret_file),
    )
    inbox: Inbox[Any] = Inbox(config.inbox)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: inbox.stop())
    busy = BusyPage("", 1, lambda threads: None)
    life = Life(config, new_epoch(), ServerClock(), EngineStatus(), inbox, Outbox(MAX_STEPS_BEHIND), busy)
    life.status.shows(WorkerLoad(blocks_total=1 << 20), PromptCounts())

    def make_transfer(network: Network, tell: Any) -> NoTransfer:
        return NoTransfer()

    described = fake_record("decode", life.epoch, options.model, handoff_address="")
    io = IOThread(life, described, load_secret(options.secret_file), make_transfer, torch.device("cpu"))
    io.start()
    while not io.registered and not inbox.stopping:
        time.sleep(0.01)
    if io.error is not None:
        print(f"error: {io.error}", file=sys.stderr)
        return 1
    options.ready.touch()
    make_tokens(life, 1 / options.steps, sent)
    io.stop()
    print(msgspec.json.encode(sent).decode(), flush=True)
    return 0


def watch(sent: Sent) -> None:
    async def counted(socket: Any, frames: Any) -> bool:
        taken = await try_send(socket, frames)
        message = decode_from_worker(frames[-1])
        if taken and isinstance(message, Tokens):
            sent.messages += 1
            sent.entries += len(message.emitted)
            sent.tokens += sum(len(each.token_ids) for each in message.emitted)
            sent.longest = max(sent.longest, len(frames[-1]))
        return taken

    def read(data: bytes | memoryview) -> ToWorker:
        message = decode_to_worker(data)
        if isinstance(message, Ping):
            now = time.monotonic()
            if sent.made and sent.pinged:
                sent.pause = max(sent.pause, now - sent.pinged)
            sent.pinged = now
        return message

    patch("worker.gateways.connections.try_send", counted).start()
    patch("worker.gateways.connections.decode_to_worker", read).start()


def make_tokens(life: Life, pause: float, sent: Sent) -> None:
    running: dict[AttemptKey, tuple[int, int]] = {}  # next output index, and the end
    due = time.monotonic()
    for step in itertools.count():
        for event in life.inbox.take(max(0.0, due - time.monotonic()) if running else 1.0):
            if isinstance(event, PrefillJob | DecodeJob):
                first, end = event.prompt.emitted, event.limits.max_tokens
                running |= {key: (first, end) for key in event.attempts()}
        if life.inbox.stopping:
            return
        due = max(due + pause, time.monotonic() - 10 * pause)
        if not running:
            continue
        token = 300 + step % 64
        emitted = [
            Emitted(key, index, [token], "length" if index + 1 == end else None)
            for key, (index, end) in running.items()
        ]
        running = {key: (index + 1, end) for key, (index, end) in running.items() if index + 1 < end}
        sent.made += len(emitted)
        life.outbox.post(Emit(emitted))


if __name__ == "__main__":
    raise SystemExit(main())
