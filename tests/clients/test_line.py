"""Shows what a crowd of official clients gets, with their own retries, from a system with room for few of them."""

import asyncio
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.e2e.conftest import DEMO
from tests.e2e.harness.system import System
from tests.waiting import LONG_DEADLINE_S

CLIENTS, ROOM, LINE = 200, 20, 20
LONG_ANSWER_TOKENS = (
    150  # tokens for whom there is room at once, so that the next come meanwhile, however fast the machine is
)
FIRST_CLIENTS = 60  # clients that come at once; the others take their time


@pytest.mark.parametrize("waiting", [CLIENTS, LINE], ids=["all of them may wait", "some are told to come back"])
async def test_a_crowd_is_served_in_the_order_in_which_it_came(tmp_path: Path, waiting: int) -> None:
    settings = ("--max-requests", str(ROOM), "--max-waiting", str(waiting))
    with System(tmp_path, DEMO, gateway=settings) as system:
        ended: list[str] = []
        async with DefaultAsyncHttpxClient(timeout=LONG_DEADLINE_S) as shared:

            async def ask(number: int) -> Any:
                client = AsyncOpenAI(base_url=f"{system.gateway_url}/v1", api_key="any", http_client=shared)
                await asyncio.sleep((0.001 if number < FIRST_CLIENTS else 0.005) * number)
                said: Any = [{"role": "user", "content": f"Client {number} says hello."}]
                asked: Any = {
                    "extra_body": {"ignore_eos": True},
                    "max_tokens": LONG_ANSWER_TOKENS if number < ROOM else 24,
                }
                answer = await client.chat.completions.create(model=DEMO.name, messages=said, **asked)
                ended.append(answer.id.removeprefix("chatcmpl-"))
                return answer.choices[0].finish_reason

            reasons = await asyncio.gather(*[ask(number) for number in range(CLIENTS)])
        assert reasons == ["length"] * CLIENTS
        await asyncio.to_thread(system.wait_until_idle)
        came = {record.request: record.ended_at - record.e2e_ms / 1000 for record in system.finished()}
        places = {request: place for place, request in enumerate(sorted(ended, key=lambda request: came[request]))}
        moved = mean(abs(places[request] - place) for place, request in enumerate(ended))
        assert moved < ROOM / 2, f"on average by {moved:.0f} places; by chance it would be {CLIENTS / 3:.0f}"
        codes = [one.labels["code"] for one in system.figures("baton:requests_refused_total")]
        assert ("rate_limit_exceeded" in codes) == (waiting < CLIENTS)
