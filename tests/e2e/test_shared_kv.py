"""Sharing, forking, preempting, swapping: whatever happens to KV blocks, the tokens are transformers' greedy ones."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
from msgspec import structs

from infra.redis.worker_load import KVCounts
from tests.e2e.harness.golden import LIMITS, build_served_model, complete_all, golden_runs, tokens_of
from tests.e2e.harness.system import System
from tests.plain_http import PLAIN
from tests.reference import Golden, make_prompts
from tests.variants import VARIANTS
from tests.waiting import LONG_DEADLINE_S

OUTPUT_TOKENS = 64  # output tokens: four blocks that every sequence grows by
BLOCK_BYTES = 4 * 2 * 2 * 16 * 32 * 4  # bytes: layers x sides x KV heads x tokens x head size x fp32
LOAD_ROUNDS = 8
POOL, TIER = 48, 8  # blocks of each worker; the last load, of 4 x 12 samples, would take ten times as many
WORKER_OPTIONS = (
    *("--dtype", "fp32", "--max-batch-tokens", "56", "--max-model-len", "512"),
    *("--kv-memory", str(POOL * BLOCK_BYTES), "--host-kv-memory", str(TIER * BLOCK_BYTES)),
)


def test_tokens_are_exact_while_blocks_are_shared_forked_preempted_and_swapped(tmp_path: Path) -> None:
    model = build_served_model(tmp_path / "model", "llama")
    vocabulary = VARIANTS["llama"]().vocab_size
    (system_prompt,) = make_prompts([200], vocabulary, seed=5)  # 12 blocks and a half
    own = make_prompts([5, 9, 16, 24, 33, 40, 47, 64, 71, 80, 96, 100], vocabulary, seed=6)
    first = golden_runs(model, [system_prompt + tokens for tokens in own], OUTPUT_TOKENS)
    turns = [run.prompt + run.tokens + tail for run, tail in zip(first[:4], own[4:], strict=False)]
    second = golden_runs(model, turns, OUTPUT_TOKENS)
    with System(tmp_path, model, prefill=2, decode=2, worker=WORKER_OPTIONS) as system:
        for _ in range(LOAD_ROUNDS):
            for turn in (first, first, second):
                assert complete_all(system.gateway_url, turn) == [run.tokens for run in turn]
            for answers, run in zip(sample_all(system.gateway_url, first, n=4), first, strict=True):
                assert answers == [run.tokens] * 4
            prefill, decode = counts(system)
            if all(happened(prefill, decode)):
                break
    print(prefill, decode)
    assert all(happened(prefill, decode))


def counts(system: System) -> tuple[KVCounts, KVCounts]:
    """What has happened to blocks so far, on all prefill and on all decode workers; all are idle."""
    sums: dict[str, dict[str, int]] = {"prefill": {}, "decode": {}}
    for record in system.wait_until_idle(60):
        assert record.load.blocks_used == 0
        of_role = sums[record.role]
        for name, count in structs.asdict(record.load.kv).items():
            of_role[name] = of_role.get(name, 0) + count
    return KVCounts(**sums["prefill"]), KVCounts(**sums["decode"])


def happened(prefill: KVCounts, decode: KVCounts) -> list[bool]:
    """Whether everything that this test is about has happened: who meets whom in the pool is chance."""
    both = [
        found.found_tokens > 0 and found.evicted_blocks > 0 and found.spilled_blocks > 0 and found.returned_blocks > 0
        for found in (prefill, decode)
    ]
    forked = decode.forks > 0 and decode.copied_blocks > 0
    preempted = decode.preempted_swapped > 0 and decode.preempted_recomputed > 0
    return [*both, prefill.partial_hits > 0, forked, preempted]


def sample_all(url: str, runs: list[Golden], n: int) -> list[list[list[int]]]:

    async def one(client: httpx.AsyncClient, model: str, run: Golden) -> list[list[int]]:
        body = {
            "model": model,
            "prompt": run.prompt,
            "max_tokens": len(run.tokens),
            "temperature": 0,
            "ignore_eos": True,
            "n": n,
        }
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        choices: list[dict[str, Any]] = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
        assert [choice["index"] for choice in choices] == list(range(n))
        return [tokens_of(choice["text"]) for choice in choices]

    async def everything() -> list[list[list[int]]]:
        async with httpx.AsyncClient(base_url=url, timeout=LONG_DEADLINE_S, limits=LIMITS, verify=PLAIN) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            return await asyncio.gather(*(one(client, model, run) for run in runs))

    return asyncio.run(everything())
