"""Counts a request's commands and bytes on Redis, by the length of its prompt.

One request at a time, with an answer of one token from workers that answer at once: nothing is shared, so this is the
maximum. The system's own commands are measured before, and subtracted.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from msgspec import Struct

from benchmarks.front.system import TOKEN, Front, Shape, front
from contracts.errors import BatonError
from infra.redis.clients import connect_blocking

PROMPT_LENGTHS = (16, 4096, 16384, 65536)  # tokens
QUIET_S = 3.0  # s in which the system's own commands are counted
REQUESTS_OF_EACH = 50


class Totals(Struct, frozen=True):
    """A Redis server's counts since its start."""

    at: float  # monotonic s
    calls: dict[str, int]  # by command
    received: int  # bytes
    sent: int


class Asked(Struct, frozen=True):
    """Commands and bytes of one request, without the system's own."""

    calls: dict[str, float]  # by command
    received: float  # bytes
    sent: float


def asked(
    checkout: Path, prompts: tuple[int, ...] = PROMPT_LENGTHS, requests: int = REQUESTS_OF_EACH
) -> dict[int, Asked]:
    """Returns the means over `requests` for each length of prompt, in tokens. Raises `BatonError` if one fails."""
    with front(checkout, Shape(pause=0.0, context=2 * max(prompts))) as system:
        store = connect_blocking(system.redis)
        try:
            _ask(system, 16, 8)  # makes connections
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


def asked_lines(name: str, asked: Mapping[int, Asked]) -> list[str]:
    head = f"  {'prompt':>8}{'commands':>10}{'KiB in':>9}{'KiB out':>9}  of which"
    found = [f"what a request asks of Redis, one at a time, means of {REQUESTS_OF_EACH}: {name}", head]
    for tokens, one in asked.items():
        named = ", ".join(f"{name} {calls:.2f}" for name, calls in sorted(one.calls.items()) if calls >= 0.05)
        total = sum(one.calls.values())
        found.append(f"  {tokens:>8}{total:>10.2f}{one.received / 1024:>9.1f}{one.sent / 1024:>9.1f}  {named}")
    return found
