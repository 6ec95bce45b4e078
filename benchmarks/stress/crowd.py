"""Sends a crowd of requests at once to a split system, and counts what became of them."""

import argparse
import asyncio
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from redis import Redis

from benchmarks.processes.children import exit_status
from benchmarks.processes.split_system import SplitSystem, split_system
from infra.config.engine import EngineOptions
from launcher.options import DEMO_MODEL
from launcher.stages import StageDisplay

VOCABULARY_SIZE = 256  # every model has as many
TIMEOUT_S = 700.0  # s without a byte; the gateway's own is 600 s
RETRIED = re.compile(r'^baton:attempts_retried_total\{.*reason="(.*?)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Crowd:
    """Requests of random tokens that come at once: no two have a common beginning."""

    requests: int
    prompt: int  # tokens
    answer: int  # tokens
    samples: int = 1
    seed: int = 0

    def bodies(self, model: str) -> list[dict[str, Any]]:
        chance = random.Random(self.seed)
        shared = {"model": model, "max_tokens": self.answer, "n": self.samples, "temperature": 1.0, "ignore_eos": True}
        return [
            {**shared, "prompt": [chance.randrange(VOCABULARY_SIZE) for _ in range(self.prompt)], "seed": number}
            for number in range(self.requests)
        ]


@dataclass(frozen=True)
class Came:
    """What a crowd came to."""

    seconds: float  # from the first request to the last answer
    answered: Counter[int]  # by status
    said: Counter[str]  # sentences of the errors
    entries: int  # that the job streams ever had
    retries: Counter[str]  # by reason


def run_crowd(
    name: str,
    description: str | None,
    requests: int,
    add_options: Callable[[argparse.ArgumentParser], object],
    worker: Callable[[argparse.Namespace], Sequence[str]] = lambda given: (),
    more: Callable[[SplitSystem], Iterable[str]] = lambda system: (),
) -> int:
    """Runs an experiment: starts a system whose workers have `--kv-memory` MiB of blocks, sends the crowd, prints.

    `worker`: further words of both workers' command lines; `more`: lines about the system once all have answers.
    Returns the exit status: 2 for what cannot work.
    """
    parser = argparse.ArgumentParser(prog=f"benchmarks.stress.{name}", description=description)
    parser.add_argument("--requests", type=int, default=requests)
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--answer", type=int, default=256, help="tokens of each sample")
    parser.add_argument("--kv-memory", type=int, default=4, help="MiB of KV blocks of each worker")
    parser.set_defaults(samples=1)
    add_options(parser)
    given = parser.parse_args()
    crowd = Crowd(given.requests, given.prompt, given.answer, given.samples)
    engine = EngineOptions(dtype="fp32", kv_memory=given.kv_memory << 20)

    def work(stages: StageDisplay) -> None:
        with (
            tempfile.TemporaryDirectory() as directory,
            split_system(DEMO_MODEL, Path(directory), engine, worker=worker(given)) as system,
        ):
            came = asyncio.run(send(system, crowd))
            print("\n".join([*lines(crowd, came), *more(system)]))

    return exit_status(work)


async def send(system: SplitSystem, crowd: Crowd) -> Came:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=system.url, timeout=TIMEOUT_S, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        began = time.monotonic()
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in crowd.bodies(model)))
        seconds = time.monotonic() - began
        metrics = (await client.get("/metrics")).text
    return Came(
        seconds,
        Counter(answer.status_code for answer in answers),
        Counter(answer.json()["error"]["message"] for answer in answers if answer.status_code != httpx.codes.OK),
        entries_of(system.store),
        Counter({reason: int(float(count)) for reason, count in RETRIED.findall(metrics)}),
    )


def entries_of(store: Redis) -> int:
    streams: list[bytes] = store.keys("baton:jobs:*")  # type: ignore[assignment]
    infos: list[dict[str, Any]] = [store.xinfo_stream(name) for name in streams]
    return sum(info["entries-added"] for info in infos)


def lines(crowd: Crowd, came: Came) -> list[str]:
    answered = ", ".join(f"{count} with {status}" for status, count in sorted(came.answered.items()))
    retries = ", ".join(f"{count} {reason}" for reason, count in came.retries.most_common()) or "none"
    return [
        f"{crowd.requests} requests of {crowd.samples} x {crowd.prompt} + {crowd.answer} tokens: {came.seconds:.1f} s",
        f"answered: {answered}",
        *(f"  {count} said: {sentence}" for sentence, count in came.said.most_common(5)),
        f"entries added to the job streams: {came.entries}",
        f"attempts tried again: {retries}",
    ]
