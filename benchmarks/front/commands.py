"""Counts what a request asks of Redis, by the length of its prompt, and what its body costs whoever passes it on.

A request of one prompt at a time, with an answer of one token, from workers that answer at once: nothing is shared, so
this is the most that a request asks. What the system asks by itself is measured before, and taken away.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import redis
from msgspec import Struct

from benchmarks.front.system import TOKEN, Front, Shape, front
from contracts.errors import BatonError
from contracts.messages.job import DecodeJob, Prompt, decode_job
from contracts.messages.sampling import Limits, Sampling
from contracts.messages.wire import encode
from infra.network.sealing import Sealer
from infra.redis.clients import connect, connect_blocking
from infra.redis.queue import JOB_PURPOSE, add_job, stream_of

PROMPT_LENGTHS = (16, 4096, 16384, 65536)  # tokens
QUIET_S = 3.0  # s in which the system's own commands are counted
REQUESTS_OF_EACH = 50
UNREAD_WORKER = "nobody"


class Totals(Struct, frozen=True):
    """A Redis server's counts since its start."""

    at: float  # monotonic s
    calls: dict[str, int]  # by command
    received: int  # bytes
    sent: int


class Asked(Struct, frozen=True):
    """What one request asked of Redis, the system's own share taken away."""

    calls: dict[str, float]  # by command
    received: float  # bytes
    sent: float


class Body(Struct, frozen=True):
    """What a job's body costs on its way through Redis; times are of one thread's processor, ms."""

    sealed: int  # bytes
    encode_ms: float
    seal_ms: float
    open_ms: float
    add_ms: float  # all of `add_job`, as the gateway's loop does it: encoded, sealed, written to the socket, answered
    held: int  # bytes that Redis holds while the job waits


def asked(
    checkout: Path, prompts: tuple[int, ...] = PROMPT_LENGTHS, requests: int = REQUESTS_OF_EACH
) -> dict[int, Asked]:
    """Returns of each length of a prompt what one of so many requests asked. Raises `BatonError` if one fails."""
    with front(checkout, Shape(pause=0.0, context=2 * max(prompts))) as system:
        store = connect_blocking(system.redis)
        try:
            _ask(system, 16, 8)  # the first ones make connections
            before = totals(store)
            time.sleep(QUIET_S)
            quiet = between(before, totals(store))
            return {tokens: _measured(system, store, quiet, tokens, requests) for tokens in prompts}
        finally:
            store.close()


def _measured(system: Front, store: redis.Redis, quiet: Totals, tokens: int, requests: int) -> Asked:
    before = totals(store)
    _ask(system, tokens, requests)
    return each_of(requests, between(before, totals(store)), quiet)


def each_of(requests: int, found: Totals, quiet: Totals) -> Asked:
    share = found.at / quiet.at  # of the quiet time

    def each(count: float, own: float) -> float:
        return (count - own * share) / requests

    calls = {name: each(count, quiet.calls.get(name, 0)) for name, count in found.calls.items()}
    return Asked(calls, each(found.received, quiet.received), each(found.sent, quiet.sent))


def _ask(system: Front, tokens: int, requests: int) -> None:
    with system.client("completions", requests, 1, together=1, wish={"prompt": [TOKEN] * tokens}) as (_, saw):
        seen = saw()
    failed = sum(not one.times for one in seen)
    if failed:
        raise BatonError(f"{failed} of {requests} requests with prompts of {tokens} tokens had no answer")


def totals(store: redis.Redis) -> Totals:
    stats: Any = store.info("stats")
    commands: Any = store.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): int(counts["calls"]) for name, counts in commands.items()}
    return Totals(
        time.monotonic(),
        {name: count for name, count in calls.items() if name != "info"},
        int(stats["total_net_input_bytes"]),
        int(stats["total_net_output_bytes"]),
    )


def between(before: Totals, after: Totals) -> Totals:
    calls = {name: count - before.calls.get(name, 0) for name, count in after.calls.items()}
    return Totals(after.at - before.at, calls, after.received - before.received, after.sent - before.sent)


def body(url: str, secret: bytes, tokens: int, rounds: int = 9) -> Body:
    job = DecodeJob(
        request="benchmark",
        attempt=1,
        sender="benchmark",
        receiver=UNREAD_WORKER,
        prompt=Prompt([50_000 + place % 50_000 for place in range(tokens)], tokens),
        sampling=Sampling(0),
        limits=Limits(1),
        deadline=time.time() + 60,
        queued_at=time.time(),
    )
    sealer, key = Sealer(secret, JOB_PURPOSE), stream_of(UNREAD_WORKER)
    encoded = encode(job)
    sealed = sealer.seal(encoded, key)

    async def added() -> tuple[float, int]:
        store = connect(url)
        try:
            await store.delete(key)
            await store.xgroup_create(key, "worker", id="0", mkstream=True)
            empty = await store.memory_usage(key, samples=0) or 0
            spent = []
            for _ in range(rounds):
                began = time.thread_time()
                await add_job(store, sealer, job)
                spent.append(time.thread_time() - began)
            held = (await store.memory_usage(key, samples=0) or 0) - empty
            await store.delete(key)
            return 1000 * median(spent), held // rounds
        finally:
            await store.aclose()

    add_ms, held = asyncio.run(added())
    return Body(
        sealed=len(sealed),
        encode_ms=_spent(lambda: encode(job), rounds),
        seal_ms=_spent(lambda: sealer.seal(encoded, key), rounds),
        open_ms=_spent(lambda: decode_job(sealer.open(sealed, key)), rounds),
        add_ms=add_ms,
        held=held,
    )


def _spent(work: Callable[[], object], rounds: int) -> float:
    def once() -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    return 1000 * median(once() for _ in range(rounds))


def bodies(checkout: Path, prompts: tuple[int, ...] = PROMPT_LENGTHS) -> dict[int, Body]:
    with front(checkout, Shape(workers=0, gateways=0)) as system:
        secret = (system.directory / "secret").read_bytes()
        return {tokens: body(system.redis, secret, tokens) for tokens in prompts}


def asked_lines(name: str, asked: Mapping[int, Asked]) -> list[str]:
    head = f"  {'prompt':>8}{'commands':>10}{'KiB in':>9}{'KiB out':>9}  of which"
    found = [f"what a request asks of Redis, one at a time, means of {REQUESTS_OF_EACH}: {name}", head]
    for tokens, one in asked.items():
        named = ", ".join(f"{name} {calls:.2f}" for name, calls in sorted(one.calls.items()) if calls >= 0.05)
        total = sum(one.calls.values())
        found.append(f"  {tokens:>8}{total:>10.2f}{one.received / 1024:>9.1f}{one.sent / 1024:>9.1f}  {named}")
    return found


def body_lines(bodies: Mapping[int, Body]) -> list[str]:
    found = ["what a job's body costs this code, processor ms", f"  {'prompt':>8}{'sealed KiB':>12}{'held KiB':>10}"]
    found[-1] += f"{'encode':>9}{'seal':>8}{'open':>8}{'add':>8}"
    for tokens, each in bodies.items():
        times = f"{each.encode_ms:>9.3f}{each.seal_ms:>8.3f}{each.open_ms:>8.3f}{each.add_ms:>8.3f}"
        found.append(f"  {tokens:>8}{each.sealed / 1024:>12.1f}{each.held / 1024:>10.1f}{times}")
    return found
