"""Shows over HTTP that one client's objective, however strict, disturbs no other client's requests."""

import asyncio
from typing import Any

import httpx
import pytest

from infra.redis.worker_load import WorkerLoad
from pricing.step_costs.steps import StepCosts
from tests.gateway.peer import Peer
from tests.gateway.running import Running, Serve, until

STEP_COSTS = StepCosts(step=0.002, prompt_token=1e-5, sequence=1e-4)
SHOWN = StepCosts(step=0.002, prompt_token=1e-5, sequence=1e-4, steps=50, fastest=0.002)
STRICT = {"x-slo-tpot-ms": "1"}


async def costing(running: Running, costs: StepCosts) -> Peer:
    """Has the workers tell what their steps cost; returns the one that decodes."""
    for peer in running.peers:
        peer.load = WorkerLoad(blocks_total=1000, costs=costs)
        await peer.beat()
    await running.gateway.discovery.poll()
    return running.peer("decode")


def chat(running: Running, headers: dict[str, str], caller: str = "") -> "asyncio.Task[httpx.Response]":
    identity = {"authorization": f"Bearer {caller}"} if caller else {}
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi!"}]}
    asked = running.client.post("/v1/chat/completions", json=body, headers=headers | identity)
    return asyncio.create_task(asked)


@pytest.mark.parametrize("caller", ["", "another"], ids=["same tenant", "another tenant"])
async def test_who_wants_what_cannot_be_now_stops_nobody(serve: Serve, caller: str) -> None:
    running = await serve("prefill", "decode")
    decode = await costing(running, STEP_COSTS)
    decode.faults["stalls_at"] = 2
    held = chat(running, {})
    await until(lambda: any(one.sent >= 2 for one in decode.holding.values()), "an answer in progress")
    decode.faults.clear()
    strict = [chat(running, STRICT) for _ in range(3)]
    await until(lambda: running.gateway.requests.waiting() == 3, "strict requests that wait")
    answers = await asyncio.gather(*[chat(running, {}, caller) for _ in range(10)])
    assert [answer.status_code for answer in answers] == [200] * 10
    assert not any(one.done() for one in (*strict, held)), "no request has shown yet what is possible"
    await costing(running, SHOWN)
    for refusal in await asyncio.gather(*strict):
        error = refusal.json()["error"]
        assert (refusal.status_code, error["code"]) == (429, "objective_out_of_reach")
        assert "2 ms is the fastest" in error["message"] and "every 1 ms" in error["message"]
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
