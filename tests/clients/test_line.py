"""Shows what a crowd of official clients gets, with their own retries, from a system with room for few of them."""

import asyncio
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.e2e.conftest import DEMO
from tests.e2e.system import System
from tests.waiting import wait_until

CLIENTS, ROOM, LINE = 200, 20, 10


def body(said: str, tokens: int) -> dict[str, Any]:
    return {"model": DEMO.name, "messages": [{"role": "user", "content": said}], "max_tokens": tokens}


async def hold(url: str) -> None:
    """Asks for an answer that takes far longer than a crowd takes to come."""
    async with httpx.AsyncClient(timeout=100.0) as client:
        await client.post(f"{url}/v1/chat/completions", json=body("Hello!", 1900) | {"ignore_eos": True})


@pytest.mark.parametrize("waiting", [CLIENTS, LINE], ids=["all of them may wait", "some are told to come back"])
async def test_a_crowd_is_served_in_the_order_in_which_it_came(tmp_path: Path, waiting: int) -> None:
    """Where some are to be told to come back, others have all the room until one is, however fast the machine is."""
    settings = ("--max-requests", str(ROOM), "--max-waiting", str(waiting))
    with System(tmp_path, DEMO, gateway=settings) as system:
        ended: list[int] = []
        holding = [asyncio.create_task(hold(system.gateway_url)) for _ in range(ROOM * (waiting < CLIENTS))]
        await asyncio.to_thread(wait_until, lambda: system.in_progress() == len(holding), "those who have the room")

        async def see(response: Any) -> None:
            if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
                for task in holding:
                    task.cancel()

        async with DefaultAsyncHttpxClient(timeout=100.0, event_hooks={"response": [see]}) as shared:

            async def ask(number: int) -> str | None:
                client = AsyncOpenAI(base_url=f"{system.gateway_url}/v1", api_key="any", http_client=shared)
                await asyncio.sleep(0.005 * number)
                answer = await client.chat.completions.create(**body(f"Client {number} says hello.", 24))
                ended.append(int(answer.id.rpartition("-")[2], 16))  # requests are numbered as they come
                return answer.choices[0].finish_reason

            reasons = await asyncio.gather(*[ask(number) for number in range(CLIENTS)])
        assert len(reasons) == CLIENTS and set(reasons) <= {"length", "stop"}
        assert all(
            isinstance(left, asyncio.CancelledError) for left in await asyncio.gather(*holding, return_exceptions=True)
        )
        places = {number: place for place, number in enumerate(sorted(ended))}
        moved = mean(abs(places[number] - place) for place, number in enumerate(ended))
        assert moved < ROOM / 2, f"on average by {moved:.0f} places; by chance it would be {CLIENTS / 3:.0f}"
        refused = [
            one for one in system.figures("baton:requests_refused_total") if one.labels["code"] == "rate_limit_exceeded"
        ]
        assert bool(refused) == (waiting < CLIENTS)
