"""Shows what grammars that cost too much do to others: `python -m benchmarks.stress.grammar_bombs`.

A few clients stream answers all the time, and note the seconds between chunks: first alone, then while one client sends
bombs, each as soon as the one before was answered. *slowest* is the longest that any answer to a bomb took; each has to
be a 4xx, within a second on a machine that has a processor for it. Streams are undisturbed if the 99th percentile
between their chunks is at most twice as long as before.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.children import exit_status
from benchmarks.split_system import split_system
from launcher.options import DEMO_MODEL
from launcher.stages import Stages

MOST_RATIO = 2.0
MOST_SECONDS = 1.0
TIME_OUT = 60.0  # s


def bombs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields names and forms; what is not refused for its size is refused for what it takes."""
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    patterns = {
        f"k{each}": {"type": "string", "pattern": f"^[a-z]{{1,{each % 50 + 1}}}x{each}$"} for each in range(3000)
    }
    chain = [f"r{each}: r{each + 1} r{each + 1} | r{each + 1}" for each in range(9000)]
    yield "nesting", {"guided_json": deep}
    yield "a million states", {"guided_json": {"enum": [f"{each:x}" * 8 for each in range(50000)]}}
    yield "patterns", {"guided_json": {"properties": patterns}}
    yield "a long regex", {"guided_regex": "(a+)+" * 20000}
    yield "parentheses", {"guided_regex": "(" * 5000 + "a" + ")" * 5000}
    yield "a chain of rules", {"guided_grammar": "\n".join(["start: r0", *chain, 'r9000: "a"'])}
    yield "ambiguity", {"guided_grammar": 'start: e\ne: e e e | e e | /./ | ""'}
    yield "GBNF", {"guided_grammar": "root ::= " + "(" * 20000 + '"a"' + ")" * 20000}


async def stream(client: httpx.AsyncClient, until: asyncio.Event, gaps: list[float]) -> None:
    """Streams answers until it is told to stop, and notes the seconds between chunks."""
    body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 1.0}
    while not until.is_set():
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            last = 0.0
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    now = time.perf_counter()
                    if last:
                        gaps.append(now - last)
                    last = now


async def measure(url: str, streams: int, seconds: float) -> int:
    """Prints what came of it; returns 1 if a bomb was taken, or others were disturbed."""
    limits = httpx.Limits(max_connections=streams + 4)
    wrong = 0
    async with httpx.AsyncClient(base_url=url, timeout=TIME_OUT, limits=limits) as client:
        warm = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, "guided_regex": "a|b"})
        warm.raise_for_status()  # the processes that check grammars are there
        percentiles = []
        slowest: dict[str, float] = {}
        for bombing in (False, True):
            gaps: list[float] = []
            until = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for _ in range(streams):
                    group.create_task(stream(client, until, gaps))
                if not bombing:
                    await asyncio.sleep(seconds)
                else:
                    wrong += await bomb(client, seconds, slowest)
                until.set()
            percentiles.append(float(np.percentile(gaps, 99)))
            what = "with bombs" if bombing else "alone"
            print(
                f"{streams} streams {what}: {len(gaps)} gaps, median {1000 * np.median(gaps):.1f} ms,"
                f" p99 {1000 * percentiles[-1]:.1f} ms, longest {1000 * max(gaps):.1f} ms"
            )
    for name, took in slowest.items():
        print(f"{name}: refused, slowest after {1000 * took:.0f} ms")
    ratio = percentiles[1] / percentiles[0]
    print(f"p99 with bombs / alone: {ratio:.2f}")
    late = [name for name, took in slowest.items() if took > MOST_SECONDS]
    if late:
        print(f"refused after more than {MOST_SECONDS:g} s: {', '.join(late)}")
    return int(bool(wrong or late or ratio > MOST_RATIO))


async def bomb(client: httpx.AsyncClient, seconds: float, slowest: dict[str, float]) -> int:
    """Sends each bomb again and again, never twice the same; returns how many were not refused."""
    until, number, wrong = time.perf_counter() + seconds, 0, 0
    while time.perf_counter() < until:
        for name, form in bombs():
            number += 1
            began = time.perf_counter()
            body = {"prompt": "a", "max_tokens": 8, **_unknown(form, number)}
            answer = await client.post("/v1/completions", json=body)
            slowest[name] = max(slowest.get(name, 0.0), time.perf_counter() - began)
            if not 400 <= answer.status_code < 500:
                print(f"{name}: {answer.status_code} {answer.text[:200]}")
                wrong += 1
    print(f"{number} bombs")
    return wrong


def _unknown(form: dict[str, Any], number: int) -> dict[str, Any]:
    """Returns a form with something in it that changes nothing, so that no verdict on it is known yet."""
    match form:
        case {"guided_json": schema}:
            return {"guided_json": {**schema, "title": f"{number}"}}
        case {"guided_regex": regex}:
            return {"guided_regex": f"{regex}|{number}"}
        case {"guided_grammar": grammar}:
            return {"guided_grammar": f"{grammar}\n# {number}\n"}
    raise AssertionError(form)


def main() -> int:
    """Returns exit status 1 if a bomb was taken, was refused late, or disturbed others."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stress.grammar_bombs", description=__doc__)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()

    wrong = 0

    def run(stages: Stages) -> None:
        nonlocal wrong
        with tempfile.TemporaryDirectory() as directory, split_system(str(DEMO_MODEL), Path(directory)) as system:
            wrong = asyncio.run(measure(system.url, given.streams, given.seconds))

    return exit_status(run) or wrong


if __name__ == "__main__":
    sys.exit(main())
