"""Requests of every kind at once answer what each answers alone, whatever dies, and leave nothing behind."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import httpx
import pytest

from tests.e2e.asked.asked import Asked
from tests.e2e.asked.bodies import ASK, FORM, TOOL, chat, completion
from tests.e2e.conftest import DEMO
from tests.e2e.harness.deaths import kill_busiest
from tests.e2e.harness.system import System
from tests.plain_http import PLAIN
from tests.waiting import LONG_DEADLINE_S

WORDS = ("fox", "owl", "lion", "bear", "whale", "robot")
MIN_OUTPUT_TOKENS = 64  # tokens, so that a worker dies in the midst of answers
REGEX = "[a-z]{3,10}( [a-z]{3,10}){6,12}"
DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": MIN_OUTPUT_TOKENS}
MAX_DIFFERENCE = 1e-4


def kinds(word: str) -> list[Asked]:
    tell = [{"role": "user", "content": f"Tell me a story about a {word}."}]
    long: dict[str, Any] = {"max_tokens": MIN_OUTPUT_TOKENS, "ignore_eos": True}
    weighted: dict[str, Any] = {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2}
    return [
        chat(f"{word} plain", messages=tell, **long),
        chat(f"{word} call", messages=ASK, tools=[TOOL], tool_choice="required", max_tokens=60),
        chat(f"{word} form", messages=tell, response_format=FORM, max_tokens=60),
        chat(f"{word} scores", messages=tell, logprobs=True, top_logprobs=3, **long),
        chat(f"{word} penalties", messages=tell, logprobs=True, **weighted, **long),
        chat(f"{word} samples", messages=tell, n=3, **DRAWN),
        chat(f"{word} regex", messages=tell, guided_regex=REGEX, logprobs=True, **DRAWN),
        chat(
            f"{word} biases", messages=tell, logit_bias={"262": -100}, bad_words=["the"], return_token_ids=True, **long
        ),
        completion(f"{word} echo", prompt=f"Once there was a {word}", echo=True, logprobs=2, n=2, **long),
    ]


ASKED = [asked for word in WORDS for asked in kinds(word)]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Two workers of each role, of which one each may die."""
    worker = ("--dtype", "fp32", "--kv-memory", "64MiB")
    with System(tmp_path_factory.mktemp("mixed"), DEMO, prefill=2, decode=2, worker=worker) as running:
        yield running


async def answers(system: System, at_once: int, deaths: Sequence[Callable[[], None]] = ()) -> list[Any]:
    room = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=system.gateway_url, timeout=LONG_DEADLINE_S, verify=PLAIN) as client:

        async def one(asked: Asked) -> Any:
            async with room:
                answer = await client.post(asked.path, json=asked.body)
            assert answer.status_code == httpx.codes.OK, answer.text
            return answer.json()

        running = [asyncio.ensure_future(one(asked)) for asked in ASKED]
        if deaths:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for death in deaths:
            await asyncio.to_thread(death)
        return await asyncio.gather(*running)


def check_equal(these: list[Any], those: list[Any]) -> None:
    """Checks that answers have the same words, calls, tokens, ends and counts, and nearly the same scores."""
    for asked, this, that in zip(ASKED, these, those, strict=True):
        assert [plain(one) for one in this["choices"]] == [plain(one) for one in that["choices"]], asked.name
        assert this["usage"]["completion_tokens"] == that["usage"]["completion_tokens"], asked.name
        pairs = zip(scores(this), scores(that), strict=True)
        assert all(token == other and abs(a - b) < MAX_DIFFERENCE for (token, a), (other, b) in pairs), asked.name


def plain(choice: Any) -> Any:
    message = choice.get("message") or {}
    called = [one["function"] for one in message.get("tool_calls") or ()]
    return (
        choice["index"],
        message.get("content"),
        called,
        choice.get("text"),
        choice.get("token_ids"),
        choice["finish_reason"],
    )


def scores(answer: Any) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for told in (choice["logprobs"] for choice in answer["choices"] if choice["logprobs"]):
        if "content" in told:
            found += [(one["token"], one["logprob"]) for one in told["content"]]
        else:
            found += [
                (token, score or 0.0) for token, score in zip(told["tokens"], told["token_logprobs"], strict=True)
            ]
    return found


def test_together_and_after_deaths_answers_are_what_they_are_alone(pairs: System) -> None:
    alone = asyncio.run(answers(pairs, 1))
    check_equal(asyncio.run(answers(pairs, len(ASKED))), alone)
    asyncio.run(leave(pairs))
    pairs.wait_until_idle()
    deaths = partial(kill_busiest, pairs), partial(pairs.kill, "prefill-0")
    check_equal(asyncio.run(answers(pairs, len(ASKED), deaths)), alone)
    assert pairs.retried() > 0  # the deaths were in the midst of answers
    pairs.wait_until_idle()


async def leave(system: System) -> None:
    """Asks for every answer as a stream, and goes away in its middle."""
    async with httpx.AsyncClient(base_url=system.gateway_url, timeout=LONG_DEADLINE_S, verify=PLAIN) as client:

        async def one(number: int, asked: Asked) -> None:
            async with client.stream("POST", asked.path, json={**asked.body, "stream": True}) as answer:
                assert answer.status_code == httpx.codes.OK
                lines = 0
                async for _ in answer.aiter_lines():
                    lines += 1
                    if lines > 2 * (number % 7):
                        return

        await asyncio.gather(*(one(number, asked) for number, asked in enumerate(ASKED)))
