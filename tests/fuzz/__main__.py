"""`python -m tests.fuzz` sends a million random and mutated frames to every port of both workers, under real traffic.

An outsider reaches a port by TCP and has no secret; an insider has the deployment's secret and speaks the protocol.
Both send what nobody should (`tests.fuzz.frames`). Meanwhile greedy requests go through the system, and have to be
answered as they were before. In the end both workers live, hold nothing, and are as large as they were.
"""

import asyncio
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, NamedTuple

import zmq
import zmq.asyncio
from msgspec import Meta, Struct

from benchmarks.processes.children import exit_status, last_line
from benchmarks.processes.split_system import SplitSystem, split_system
from contracts.errors import BatonError
from contracts.kinds import Positive, Seconds
from contracts.messages.gateway import ToWorker
from contracts.messages.handoff import Join, Offer, ToDecode, decode_to_prefill
from contracts.messages.wire import encode
from infra.cli import parse_or_exit
from infra.network.curve_keys import CurveKeys
from infra.network.sockets import dealer, payload_dealer, send_now
from launcher.bench.machine import machine
from launcher.options import DEMO_MODEL
from launcher.stages import StageDisplay
from tests.fuzz.frames import Frames, Mutator, Target, raw
from tests.fuzz.processes import listening, resident
from tests.fuzz.traffic import Traffic, traffic

WARM_UP = 100_000  # messages come first and are not judged: buffers and memories fill up to their bounds
MESSAGES_PER_LIFE = (
    64,
    16384,
)  # messages until an insider comes as somebody new; the long ones wait for the worker to read
PER_CONNECTION = 100  # an outsider's connection costs as much as so many messages
AT_ONCE = 64  # connections of outsiders
MESSAGES_PER_BATCH = 16  # messages until traffic has its turn
FULL_PAUSE = 0.001  # s while a queue is full
ANSWER_SECONDS = 0.02  # an outsider waits for an answer, now and then
IDLE_SECONDS = 60.0
LOOK_SECONDS = 0.5  # between two looks at whether every service lives
MEGABYTE = 1 << 20
MAX_GROWTH_MIB = 64
"""MiB. A peer's queue holds 4,096 messages (`infra.network.sockets.QUEUE_MESSAGES`), here of 3.5 KiB on average, and
the queues of four lives of an insider may be full at once: 56 MiB. A million messages are 60 times as much."""


class FuzzConfig(Struct, frozen=True, kw_only=True):
    """Fuzzes every port of a prefill and a decode worker under real traffic, and prints what came of it."""

    frames: Annotated[Positive, Meta(description="messages of an insider at each port; of outsiders, a hundredth")] = (
        1_000_000
    )
    seconds: Annotated[Seconds, Meta(description="seconds at most for each port and kind of attacker")] = 600.0
    growth: Annotated[Positive, Meta(description="megabytes that a worker may grow by after the warm-up")] = (
        MAX_GROWTH_MIB
    )
    seed: Annotated[int, Meta(ge=0, description="of everything that is random")] = 0
    model: Annotated[str, Meta(description="directory in Hugging Face format, or a hub id")] = DEMO_MODEL


class Port(NamedTuple):
    """Describes a worker's port and who is behind it."""

    name: str
    address: str
    role: str
    target: Target


class Outcome(NamedTuple):
    """Holds what an attack came to: bytes of the worker's memory, requests that were answered rightly, and all."""

    port: str
    attacker: str
    sent: Counter[str]
    seconds: float
    before: int
    after: int
    dropped: int
    right: int
    requests: int


def pid_of(target: SplitSystem, role: str) -> int:
    """Returns the process id of the worker of a role."""
    return target.processes[f"{role}-0"].pid


def ended(target: SplitSystem) -> list[str]:
    """Returns the names of the services that have ended."""
    return [name for name, process in target.processes.items() if process.poll() is not None]


def ports(target: SplitSystem) -> list[Port]:
    """Finds every address that a worker listens on. Those that its record does not name are for payloads."""
    found = []
    for role, record in sorted(target.records().items()):
        named = {record.address: ("control", ToWorker), record.handoff_address: ("handoff", ToDecode)}
        for address in sorted({*named, *listening(pid_of(target, role))} - {""}):
            name, union = named.get(address, (f"payload {address.partition(':')[0]}", ToDecode))
            found.append(Port(f"{role} {name}", address, role, Target(union, record.epoch, record.fingerprint)))
    return found


async def insider(port: Port, secret: bytes, frames: int, until: float, seed: str) -> Counter[str]:
    """Sends through the protocol, as somebody new from time to time; reads answers, except as every fourth."""
    mutator, chance, sent = Mutator(port.target, seed), random.Random(seed), Counter[str]()
    context = zmq.asyncio.Context()
    try:
        number = 0
        while sent.total() < frames and time.monotonic() < until:
            number += 1
            socket_ = open_dealer(context, port.address, secret)
            reader = asyncio.create_task(_read(socket_)) if number % 4 else None
            life = int(MESSAGES_PER_LIFE[0] * (MESSAGES_PER_LIFE[1] / MESSAGES_PER_LIFE[0]) ** chance.random())
            for _ in range(min(life, frames - sent.total())):
                kind, message = mutator.next()
                if not await _send(socket_, message, until):
                    break
                sent[kind] += 1
                if sent.total() % MESSAGES_PER_BATCH == 0:
                    await asyncio.sleep(0)
            if reader is not None:
                reader.cancel()
                await asyncio.wait([reader])
            socket_.close(0)
    finally:
        context.destroy(0)
    return sent


async def joined(port: Port, secret: bytes, frames: int, until: float, seed: str) -> Counter[str]:
    """Joins as a prefill worker does, and sends what is no payload over the socket that it was offered."""
    mutator, chance, sent = Mutator(port.target, seed), random.Random(seed), Counter[str]()
    context = zmq.asyncio.Context()
    try:
        while sent.total() < frames and time.monotonic() < until:
            control = open_dealer(context, port.address, secret)
            offer = await _offer(control, f"fuzz{sent.total()}", port.target.epoch)
            address = f"{port.address.rpartition(':')[0]}:{offer.tcp}"
            socket_ = payload_dealer(context, address, bytes.fromhex(offer.user), offer.user, offer.token)
            life = int(MESSAGES_PER_LIFE[0] * (MESSAGES_PER_LIFE[1] / MESSAGES_PER_LIFE[0]) ** chance.random())
            for _ in range(min(life, frames - sent.total())):
                kind, message = mutator.next()
                nonce = [chance.randrange(1 << 20).to_bytes(12, "little")] * (chance.random() < 0.75)
                if not await _send(socket_, [*nonce, *message], until):
                    break
                sent[kind] += 1
                if sent.total() % MESSAGES_PER_BATCH == 0:
                    await asyncio.sleep(0)
            socket_.close(0)
            control.close(0)
    finally:
        context.destroy(0)
    return sent


async def _offer(control: zmq.asyncio.Socket, sender: str, epoch: str) -> Offer:
    """Asks a worker to join. Raises `BatonError` if it offers no socket."""
    join = Join(sender=sender, receiver=epoch, transports=("tcp",), security="sealed", nonce=bytes(32))
    await _send(control, [encode(join)], time.monotonic() + IDLE_SECONDS)
    async with asyncio.timeout(IDLE_SECONDS):
        offer = decode_to_prefill((await control.recv_multipart())[0])
    if not isinstance(offer, Offer) or not offer.tcp:
        raise BatonError(f"a Join of {sender} was answered with {offer}")
    return offer


def open_dealer(context: zmq.asyncio.Context, address: str, secret: bytes) -> zmq.asyncio.Socket:
    """Makes a socket as another service of this deployment does."""
    return dealer(context, address, CurveKeys.of(secret))


async def outsider(port: Port, secret: bytes, frames: int, until: float, seed: str) -> Counter[str]:
    """Connects by itself, says something, sometimes waits for an answer, and goes."""
    mutator, chance, sent = Mutator(port.target, seed), random.Random(seed), Counter[str]()
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(said: bytes, waits: bool) -> None:
        async with gate:
            try:
                async with asyncio.timeout(10):
                    reader, writer = await _connect(port.address)
            except (OSError, TimeoutError):
                sent["refused"] += 1
                return
            try:
                writer.write(said)
                async with asyncio.timeout(ANSWER_SECONDS):
                    await (reader.read(MEGABYTE) if waits else writer.drain())
            except (OSError, TimeoutError):
                pass
            finally:
                writer.transport.abort() if chance.random() < 0.5 else writer.close()

    running: set[asyncio.Task[None]] = set()
    for _ in range(max(1, frames // PER_CONNECTION)):
        if time.monotonic() > until:
            break
        kind, (said,) = raw(mutator, chance)
        running.add(asyncio.create_task(one(said, waits=chance.random() < 0.25)))
        sent[kind] += 1
        while len(running) >= AT_ONCE:
            _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    if running:
        await asyncio.wait(running)
    return sent


Attack = Callable[[Port, bytes, int, float, str], Coroutine[None, None, Counter[str]]]
ATTACKS: dict[str, Attack] = {"outsider": outsider, "insider": insider, "joined": joined}


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("ipc://"):
        return await asyncio.open_unix_connection(address.removeprefix("ipc://"))
    host, _, number = address.removeprefix("tcp://").rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(number), family=socket.AF_UNSPEC)


async def _send(socket_: zmq.asyncio.Socket, message: Frames, until: float) -> bool:
    """Waits for room; False at the end of the time. A message has at least one frame."""
    while not send_now(socket_, list(message) or [b""]):
        if time.monotonic() > until:
            return False
        await asyncio.sleep(FULL_PAUSE)
    return True


async def _read(socket_: zmq.asyncio.Socket) -> None:
    while True:
        await socket_.recv_multipart()


async def attack_all(config: FuzzConfig, target: SplitSystem, stages: StageDisplay) -> tuple[list[Outcome], Traffic]:
    """Sends every attacker to every port, one after the other."""
    outcomes = []
    async with traffic(target.url, config.seed) as flow:
        for attacker, attack in ATTACKS.items():
            for port in ports(target):
                if attacker != "outsider" and "payload" in port.name:
                    continue  # a payload port admits each peer by a token of its own
                if attacker == "joined" and "handoff" not in port.name:
                    continue
                stages.show(port.name, f"{attacker} attacks")
                warm_up = min(config.frames, WARM_UP)
                await attacked(target, attack, port, warm_up, config.seconds, f"{config.seed} warm-up")
                before, right, requests = resident(pid_of(target, port.role)), flow.right, flow.all
                dropped = await dropped_by(target, port.role)
                began = time.monotonic()
                sent = await attacked(target, attack, port, config.frames, config.seconds, f"{config.seed} {port.name}")
                took = time.monotonic() - began
                await settled(target, flow)
                after = resident(pid_of(target, port.role))
                dropped = await dropped_by(target, port.role) - dropped
                right, requests = flow.right - right, flow.all - requests
                outcomes.append(Outcome(port.name, attacker, sent, took, before, after, dropped, right, requests))
                stages.show(port.name, f"{attacker} done")
    return outcomes, flow


async def attacked(
    target: SplitSystem, attack: Attack, port: Port, frames: int, seconds: float, seed: str
) -> Counter[str]:
    """Attacks one port, and returns what was sent. Raises `BatonError` if a service ends meanwhile."""
    task = asyncio.ensure_future(attack(port, target.secret, frames, time.monotonic() + seconds, seed))
    try:
        while not task.done():
            await asyncio.wait([task], timeout=LOOK_SECONDS)
            if dead := ended(target):
                why = last_line(target.directory / f"{dead[0]}.log")
                raise BatonError(f"{', '.join(dead)} ended under an attack on {port.name}: {why}")
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def settled(target: SplitSystem, flow: Traffic) -> None:
    """Returns when traffic has been answered twice more, so that what was sent before has been read."""
    enough = flow.all + 4
    deadline = time.monotonic() + IDLE_SECONDS
    while flow.all < enough and time.monotonic() < deadline and not ended(target):
        await asyncio.sleep(0.05)


async def dropped_by(target: SplitSystem, role: str) -> int:
    """Returns the number of messages that a worker has dropped. Raises `BatonError` if its heartbeat has stopped."""
    record = target.records().get(role)
    if record is None:
        raise BatonError(f"the {role} worker is not registered any more: its heartbeat has stopped")
    return record.load.dropped


def held(target: SplitSystem) -> dict[str, int]:
    """Counts the blocks and sequences that each worker still holds when all has ended, abandoned handoffs too."""
    deadline = time.monotonic() + IDLE_SECONDS
    while True:
        left = {
            role: record.load.blocks_used + record.load.running + record.load.waiting
            for role, record in target.records().items()
        }
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def table(outcomes: list[Outcome]) -> str:
    """Writes one line for each port and attacker."""
    head = (
        f"{'port':18} {'attacker':9} {'sent':>9} {'per s':>7} {'MiB before':>11} {'after':>7} {'dropped':>9}     right"
    )
    lines = [
        f"{one.port:18} {one.attacker:9} {one.sent.total():9} {one.sent.total() / one.seconds:7.0f} "
        f"{one.before / MEGABYTE:11.1f} {one.after / MEGABYTE:7.1f} {one.dropped:9} {f'{one.right}/{one.requests}':>9}"
        for one in outcomes
    ]
    kinds: dict[str, Counter[str]] = {}
    for one in outcomes:
        kinds.setdefault(one.attacker, Counter()).update(one.sent)
    sent = [f"{name}: " + ", ".join(f"{kind} {n}" for kind, n in sorted(many.items())) for name, many in kinds.items()]
    return "\n".join([head, *lines, *sent])


def failures(config: FuzzConfig, outcomes: list[Outcome], flow: Traffic, left: dict[str, int]) -> list[str]:
    """Writes a sentence for each thing that is not as it should be."""
    found = [
        f"{one.port}: grew by {(one.after - one.before) / MEGABYTE:.1f} MiB under the {one.attacker}'s attack"
        for one in outcomes
        if one.after - one.before > config.growth * MEGABYTE
    ]
    found += [f"{one.port}: no request was answered meanwhile" for one in outcomes if not one.requests]
    found += [f"wrong answer: {wrong}" for wrong in flow.wrong[:5]]
    found += [f"{role}: holds {count} blocks or sequences after all has ended" for role, count in left.items() if count]
    found += [f"no {role} worker is registered any more" for role in ("prefill", "decode") if role not in left]
    return found


def fuzz(config: FuzzConfig, stages: StageDisplay) -> list[str]:
    """Runs it all, prints the table, and returns what is not as it should be."""
    with tempfile.TemporaryDirectory(prefix="baton-fuzz-") as directory:
        with split_system(config.model, Path(directory)) as target:
            outcomes, flow = asyncio.run(attack_all(config, target, stages))
            left = held(target)
        stages.settle()
        print(table(outcomes))
        logs = sum(path.stat().st_size for path in Path(directory).glob("*.log"))
        print(f"logs {logs / MEGABYTE:.1f} MiB")
    return failures(config, outcomes, flow, left)


def main() -> int:
    """Returns the exit status: 0 if nothing was harmed."""
    config = parse_or_exit(FuzzConfig, "tests.fuzz")
    print(machine())
    found: list[str] = []
    status = exit_status(lambda stages: found.extend(fuzz(config, stages)))
    if status == 0:
        print("\n".join(found) or "nobody was harmed", file=sys.stderr)
    return status or bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
