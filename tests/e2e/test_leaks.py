"""A thousand requests that end in every way leave nothing behind, on any worker."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import httpx

from tests.e2e.harness.deaths import kill_busiest
from tests.e2e.harness.golden import LIMITS, build_served_model
from tests.e2e.harness.system import System
from tests.plain_http import PLAIN
from tests.waiting import LONG_DEADLINE_S, wait_until

REQUEST_COUNT = 1000
AT_ONCE = 48
BLOCK_BYTES = 4 * 2 * 2 * 16 * 32 * 4  # bytes: layers x sides x KV heads x tokens x head size x fp32
WORKER_OPTIONS = (
    *("--log-level", "debug"),
    *("--dtype", "fp32", "--max-batch-tokens", "128", "--max-model-len", "512"),
    *("--kv-memory", str(100 * BLOCK_BYTES), "--host-kv-memory", str(30 * BLOCK_BYTES)),
)


def test_a_thousand_starts_cancels_forks_and_failures_leave_no_block(tmp_path: Path) -> None:
    model = build_served_model(tmp_path / "model", "llama")
    with System(tmp_path, model, prefill=2, decode=2, worker=WORKER_OPTIONS) as system:
        deaths = {300: partial(kill_busiest, system), 600: partial(system.kill, "prefill-1")}
        outcomes = asyncio.run(everything(system.gateway_url, deaths))
        assert system.retried() > 0
        print(outcomes)
        assert (
            outcomes["finished"] > REQUEST_COUNT / 4 and outcomes["cut"] > REQUEST_COUNT / 4 and outcomes["refused"] > 0
        )
        assert outcomes.total() == REQUEST_COUNT
        wait_until(lambda: len(system.records()) == 2, "the dead workers' records to expire")
        records = system.wait_until_idle(60)
        # Once idle for a second, a worker compares every reference with its holders, and ends if one is odd.
        assert all(record.load.kv.forks > 0 for record in records if record.role == "decode")
        accounts = [f"idle after {record.load.steps} steps: all blocks are accounted for" for record in records]
        wait_until(lambda: all(account in system.log() for account in accounts), f"the workers to say {accounts}")
        for record in system.records():
            assert record.load.blocks_used == 0 and 0 < record.load.blocks_cached <= record.load.blocks_total


async def everything(url: str, deaths: Mapping[int, Callable[[], None]]) -> Counter[str]:
    chance = random.Random(7)
    common = [[chance.randrange(320) for _ in range(length)] for length in (40, 100, 210)]
    outcomes: Counter[str] = Counter()
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(client: httpx.AsyncClient, number: int, draw: random.Random) -> None:
        own = [draw.randrange(320) for _ in range(draw.randrange(60))]
        body = {
            "model": model,
            "prompt": draw.choice(common)[: draw.randrange(1, 210)] + own,
            "max_tokens": draw.randrange(1, 40),
            "n": draw.choice([1, 1, 1, 2, 3]),
            "temperature": draw.choice([0, 1]),
            "ignore_eos": True,
            "stream": True,
        }
        if draw.random() < 0.05:
            body["max_tokens"] = 600  # more than max_model_len leaves
        cut_after = draw.randrange(6) if draw.random() < 0.5 else -1
        async with gate, client.stream("POST", "/v1/completions", json=body) as answer:
            if number in deaths:
                await asyncio.to_thread(deaths[number])
            seen, last = 0, ""
            async for line in answer.aiter_lines():
                seen += line.startswith("data:")
                last = line or last
                if seen > cut_after >= 0:
                    break
        if answer.status_code != 200:
            outcomes["refused"] += 1
        elif cut_after >= 0:
            outcomes["cut"] += 1
        else:
            outcomes["finished" if last == "data: [DONE]" else "broken"] += 1

    async with httpx.AsyncClient(base_url=url, timeout=LONG_DEADLINE_S, limits=LIMITS, verify=PLAIN) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        await asyncio.gather(*(one(client, number, random.Random(number)) for number in range(REQUEST_COUNT)))
    return outcomes
